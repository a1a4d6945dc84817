"""Processes into jobs: pure, from what processes say about themselves."""
