"""Scheduling: interruptible work, priority of the UI, backoff."""
