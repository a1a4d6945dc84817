"""Cutting a byte stream into lines, with a bound on how long one may get."""

from __future__ import annotations

from hangtop_probe.wire.wire import MAGIC, MAX_LINE


class LineCutter:
    """Collects bytes and hands out whole lines.

    A line longer than the protocol allows is handed out once, cut just above that length so that
    `hangtop_probe.wire.wire.Reader` refuses it, and the rest of it is dropped: a node that sends no
    newline cannot fill the memory.
    """

    def __init__(self, max_line: int = MAX_LINE + len(MAGIC)) -> None:
        self._max_line = max_line
        self._pieces: list[bytes] = []
        self._held = 0
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the lines they complete, without newlines."""
        *whole, rest = data.split(b"\n")
        lines: list[bytes] = []
        for piece in whole:
            self._add(piece, lines)
            if not self._dropping:
                lines.append(b"".join(self._pieces))
            self._pieces.clear()
            self._held = 0
            self._dropping = False
        self._add(rest, lines)
        return lines

    def _add(self, piece: bytes, lines: list[bytes]) -> None:
        if self._dropping or not piece:
            return
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held > self._max_line:
            lines.append(b"".join(self._pieces)[: self._max_line + 1])
            self._pieces.clear()
            self._dropping = True
