"""What ranks have printed or written for hangtop."""
