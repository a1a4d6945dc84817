"""Reaching nodes: targets, connections, and what is said over them."""
