"""Reaching nodes: targets, connections, and messages."""
