"""Sockets and connections of processes."""
