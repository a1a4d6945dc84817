"""Whose turn it is: work that can be interrupted, the priority of the screens, backoff."""
