"""Actions and keys: their effects, their conditions, their confirmations."""
