"""The `while` loops that a main thread has not left, and since when.

Who goes round in one is met at other lines of other functions each time. That it stays there shows
by what is the same: all calls that lead to the loop, and the memory of its process, which work on
anything new changes sooner or later. Only loops are looked at that run nothing but Python's own
code and the program's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model import Frame

_WHILE = re.compile(
    r"while\b(?!.*(?:[<>]|:=|# ends$|\bnext\b|time|clock|perf_counter|deadline|until))"
)
"""Of `while left:`; one that counts, looks at a clock or takes the next thing comes to its end, and
so does one of which the probe says so (`hangtop_probe.worklists`)."""


class Whiles:
    """Of one process."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def forget(self) -> None:
        """Count anew: the process has got more memory, or given some back."""
        self._since = {}

    def see(self, stack: Sequence[Frame], at: float) -> tuple[tuple[str, str, int, float], ...]:
        """Return file, function and line of each, outermost first, and since when it is in it.

        Args:
            stack: innermost frame first.
            at: when it was there.
        """
        found, known = [], self._since
        self._since = {}
        calls = 0
        inside = next((i for i, one in enumerate(stack) if not _plain(one)), len(stack))
        for depth in reversed(range(len(stack))):
            frame = stack[depth]
            for line, text in (frame.within or ()) if depth < inside else ():
                if _WHILE.match(text):
                    key = hash((calls, frame.file, frame.name, line))
                    since = self._since[key] = known.get(key, at)
                    found.append((frame.file, frame.name, line, since))
            calls = hash((calls, frame.file, frame.name, frame.line))
        return tuple(found)


def _plain(frame: Frame) -> bool:
    """Whether a frame is the program's own, or Python's."""
    return frame.within is not None or (not frame.native and package(frame.file) == "python")
