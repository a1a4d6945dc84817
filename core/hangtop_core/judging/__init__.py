"""Conclusions from snapshots over time: hangs, their causes and their ends."""
