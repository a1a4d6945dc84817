"""Nouns about a node: its hardware, its file systems, its kernel, and what was tried on it."""
