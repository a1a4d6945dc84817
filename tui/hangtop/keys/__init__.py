"""Actions and keys: what each does, when it is possible, and what it asks for."""
