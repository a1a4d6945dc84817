"""The node itself: its facts, its cgroups, its kernel log, what is permitted on it."""
