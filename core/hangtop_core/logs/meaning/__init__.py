"""Meanings of known log lines."""
