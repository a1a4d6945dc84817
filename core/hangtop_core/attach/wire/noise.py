"""Output of a node beside its messages: banners, output of rc files, garbage, floods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from hangtop_probe.wire.wire import Reader

KEPT = 8
"""Number of lines that are kept."""
FLOOD = 1024 * 1024
"""Bytes of noise in a row at which a connection is given up: no banner is that long, and reading on
would cost the head a core."""
FLOOD_FIX = Advice(
    "see what writes to standard output at a login there: ~/.bashrc, ~/.profile, /etc/profile"
)


class Noise:
    """The last lines of noise, and their number, over all connections to one node."""

    def __init__(self) -> None:
        self._lines = 0
        self._kept: list[str] = []

    def take(self, reader: Reader) -> dict[str, Any]:
        """Take the noise of a reader; return the fields of `model.Node` that this changes."""
        if not reader.noise_lines:
            return {}
        lines = [raw.decode("utf-8", "replace") for raw in reader.noise]
        changes = self.add(reader.noise_lines, *lines)
        reader.noise_lines = 0
        reader.noise.clear()
        return changes

    def add(self, count: int, *lines: str) -> dict[str, Any]:
        """Add lines, the last of ``count``; return the fields of `model.Node` that this changes."""
        self._lines += count
        self._kept = (self._kept + [clean(line, 200) for line in lines])[-KEPT:]
        return {"noise_lines": self._lines, "noise": tuple(self._kept)}
