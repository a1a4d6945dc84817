"""Masking of secrets in all texts that leave the node."""
