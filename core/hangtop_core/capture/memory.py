"""Limit on the memory that reading a capture may take.

A few kilobytes can unpack to thousands of gigabytes, in more ways than limits on lines and items
can prevent. So the memory itself is measured.
"""

from __future__ import annotations

import psutil

from hangtop_core.capture.changes import Damaged
from hangtop_core.text.clean import size

MOST = 2 << 30
"""Bytes; recorders and ten minutes of 8,192 ranks take a sixth of it."""
SHARE = 0.5
"""Share of the free memory, if that is less."""
EVERY_LINES, EVERY_BYTES = 64, 1 << 20
"""A measurement takes 11 us: one recorder's line of 5 KB unpacks to at most 3.5 MB."""


class Memory:
    """Measure from time to time how much this process has grown."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.bytes = min(MOST, int(psutil.virtual_memory().available * SHARE))
        """Maximum growth in bytes."""
        self._until = self._process.memory_info().rss + self.bytes
        self._lines = self._bytes = 0

    def take(self, line: bytes) -> None:
        """Count another line.

        Raises:
            Damaged: when too much memory is taken.
        """
        self._lines += 1
        self._bytes += len(line)
        if self._lines < EVERY_LINES and self._bytes < EVERY_BYTES:
            return
        self._lines = self._bytes = 0
        if self._process.memory_info().rss > self._until:
            raise Damaged(f"it takes more memory than hangtop gives it: {size(self.bytes)}")
