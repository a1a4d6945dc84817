"""How long a rank is paused by what a person asks for: measured, and said before it is done."""

from __future__ import annotations

NATIVE = "0.5 to 1.5 s, 3 s at most"
"""For C frames, by benchmarks/harm.py; `hangtop_probe.tracing.MAX_PAUSE_S` is the end of it."""
NATIVE_S = 1.5
"""What one process is reckoned with."""
