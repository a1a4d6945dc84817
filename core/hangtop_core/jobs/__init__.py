"""Grouping of processes into jobs: pure, from the processes' own data."""
