"""Documents as text and JSON: diagnoses, stacks, recorders, logs, numerics."""
