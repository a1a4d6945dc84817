"""Core files: search, safe reading, explanations, and display like live stacks."""
