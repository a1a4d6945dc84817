"""How long a rank is paused by what a person asks for: measured, and said before it is done."""

from __future__ import annotations

NATIVE = "0.5 s on an idle node, at most 3 s on a busy one"
"""For C frames, by benchmarks/harm.py; `hangtop_probe.stacks.tracing.MAX_PAUSE_S` is the end of
it."""
NATIVE_S = 1.0
"""What one process is reckoned with."""
