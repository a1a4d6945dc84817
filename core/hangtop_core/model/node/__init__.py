"""Nouns about a node: hardware, file systems, kernel, and the results of its check."""
