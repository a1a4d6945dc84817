"""Lines about flight recorders and process groups."""
