"""Documents made from code: JSON fields and the man page."""
