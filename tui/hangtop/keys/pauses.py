"""The pause of a rank for each request: measured, and shown before the request."""

from __future__ import annotations

NATIVE = "0.5 s on an idle node, at most 3 s on a busy one"
"""Pause for C frames, by benchmarks/harm.py; at most `hangtop_probe.stacks.tracing.MAX_PAUSE_S`."""
NATIVE_S = 1.0
"""Estimated pause of one process in s."""
