"""Ordered rules that name cause, culprits, evidence and next step."""
