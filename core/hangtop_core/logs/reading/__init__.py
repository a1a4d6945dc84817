"""Log files: search, reading, following, and the ranks that print to them."""
