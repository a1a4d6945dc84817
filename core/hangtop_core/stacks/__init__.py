"""Stacks merged over ranks, and what known functions are."""
