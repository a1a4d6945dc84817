"""Core files: found, opened without trusting them, explained, and shown like live stacks."""
