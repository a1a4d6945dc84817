"""One process, read from /proc."""
