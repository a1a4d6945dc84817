"""What ranks and launchers have printed: streams told apart, errors, and lines that are known."""
