"""Connections to nodes: starting a probe, the engine that moves bytes, the link."""
