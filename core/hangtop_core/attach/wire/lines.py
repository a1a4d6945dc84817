"""Splitting of a byte stream into lines of bounded length."""

from __future__ import annotations

from hangtop_probe.wire.wire import MAGIC, MAX_LINE


class LineCutter:
    """Collects bytes and returns complete lines.

    A line longer than the protocol allows is returned once, cut just above that length so that
    `hangtop_probe.wire.wire.Reader` refuses it, and its remainder is dropped: a node that sends no
    newline cannot fill the memory.
    """

    def __init__(self, max_line: int = MAX_LINE + len(MAGIC)) -> None:
        self._max_line = max_line
        self._pieces: list[bytes] = []
        self._held = 0
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the lines they complete, without newlines."""
        *whole, tail = data.split(b"\n")
        lines: list[bytes] = []
        for piece in whole:
            self._add(piece, lines)
            if not self._dropping:
                lines.append(b"".join(self._pieces))
            self._pieces.clear()
            self._held = 0
            self._dropping = False
        self._add(tail, lines)
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
