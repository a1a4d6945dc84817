"""The facade for screens and command line, its thread and its schedule."""
