"""The `while` loops and the function that a main thread has not left, and since when.

A thread that goes round a loop is sampled at other lines of other functions each time. Two things
show that it has not left: all calls that lead to the loop, and the memory of its process, which
work on new data changes sooner or later. Only loops that run nothing but code of Python and of the
program are considered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.model.frames import package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Frame

_WHILE = re.compile(
    r"while\b(?!.*(?:[<>]|:=|# ends$|\bnext\b|time|clock|perf_counter|deadline|until))"
)
"""Matches `while left:`. A loop that counts, reads a clock or takes the next item ends, and so does
one that the probe marks as such (`hangtop_probe.stacks.worklists`)."""

IN_PASSING = 0.8
"""Minimum share of samples in one function of a thread that stays in it."""


class Whiles:
    """The `while` loops of one process."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def forget(self) -> None:
        """Start anew: the process has gained or released memory."""
        self._since = {}

    def see(self, stack: Sequence[Frame], at: float) -> tuple[tuple[str, str, int, float], ...]:
        """Return file, function and line of each loop, outermost first, and since when it runs.

        Args:
            stack: innermost frame first.
            at: time of the sample.
        """
        loops, since_by_key = [], self._since
        self._since = {}
        calls = 0
        inside = next((i for i, frame in enumerate(stack) if not _plain(frame)), len(stack))
        for depth in reversed(range(len(stack))):
            frame = stack[depth]
            for line, text in (frame.within or ()) if depth < inside else ():
                if _WHILE.match(text):
                    key = hash((calls, frame.file, frame.name, line))
                    since = self._since[key] = since_by_key.get(key, at)
                    loops.append((frame.file, frame.name, line, since))
            calls = hash((calls, frame.file, frame.name, frame.line))
        return tuple(loops)


class Home:
    """The function that a main thread stays in while it loops in a `while` for ever.

    Nearly all samples are in that function, and a few in functions that the `while` calls; or
    nearly all are in one that the `while` calls, and a few in the function of the `while`.
    """

    __slots__ = ("_caller", "_count", "_counts", "_function", "_since")

    def __init__(self) -> None:
        self._function: int | None = None
        self._caller: int | None = None
        self._since, self._count = 0.0, 0
        self._counts: dict[int, int] = {}

    def see(self, function: int | None, caller: int | None, at: float) -> tuple[float | None, bool]:
        """Return since when it stays, None where it does not, and whether it is elsewhere now.

        Args:
            function: a number for all functions of its stack (`StackTable.homes`); None where it
                has none to stay in.
            caller: a number for those without the innermost, where that is called in a `while`.
            at: time of the sample.
        """
        if function is None or not self._remains(function, caller):
            self._begin(function, caller, at)
            return None, False
        most_sampled = max(self._counts, key=self._counts.__getitem__)
        stays = self._counts[most_sampled] >= IN_PASSING * self._count
        self._count += 1
        self._counts[function] = self._counts.get(function, 0) + 1
        return (self._since, function != most_sampled) if stays else (None, False)

    def _remains(self, function: int, caller: int | None) -> bool:
        """Return whether it is in the same function, in one called there, or back in the caller."""
        if self._function is None:
            return False
        if self._function in (function, caller):
            return True
        if function != self._caller:
            return False
        self._function, self._caller = function, None
        return True

    def _begin(self, function: int | None, caller: int | None, at: float) -> None:
        self._function, self._caller = function, caller
        self._since, self._count = at, 1
        self._counts = {function: 1} if function is not None else {}


def _plain(frame: Frame) -> bool:
    """Return whether a frame is the program's own, or Python's."""
    return frame.within is not None or (not frame.native and package(frame.file) == "python")
