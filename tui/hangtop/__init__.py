"""The terminal app and the `hangtop` command line."""
