"""Descriptors of processes: open files, locks, and who is at their other end."""
