"""Merged stacks of ranks, and the meaning of known functions."""
