"""The `while` loops and the function that a main thread has not left, and since when.

Who goes round in one is met at other lines of other functions each time. That it stays there shows
by what is the same: all calls that lead to the loop, and the memory of its process, which work on
anything new changes sooner or later. Only loops are looked at that run nothing but Python's own
code and the program's.
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
"""Of `while left:`; one that counts, looks at a clock or takes the next thing comes to its end, and
so does one of which the probe says so (`hangtop_probe.stacks.worklists`)."""

IN_PASSING = 0.8
"""Share of samples in which a thread is met in one function at least that stays in it."""


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


class Home:
    """The function that a main thread stays in while it goes round in a `while` for ever.

    It is met in that one nearly always, and now and then in what the `while` calls; or nearly
    always in one that the `while` calls, and now and then in that of the `while`.
    """

    __slots__ = ("_caller", "_count", "_function", "_met", "_since")

    def __init__(self) -> None:
        self._function: int | None = None
        self._caller: int | None = None
        self._since, self._count = 0.0, 0
        self._met: dict[int, int] = {}

    def see(self, function: int | None, caller: int | None, at: float) -> tuple[float | None, bool]:
        """Return since when it stays, None where it does not, and whether it is elsewhere now.

        Args:
            function: a number for all functions of its stack (`StackTable.homes`); None where it
                has none to stay in.
            caller: one for those without the innermost, where that is called in a `while`.
            at: when it was there.
        """
        if function is None or not self._remains(function, caller):
            self._begin(function, caller, at)
            return None, False
        most = max(self._met, key=self._met.__getitem__)
        stays = self._met[most] >= IN_PASSING * self._count
        self._count += 1
        self._met[function] = self._met.get(function, 0) + 1
        return (self._since, function != most) if stays else (None, False)

    def _remains(self, function: int, caller: int | None) -> bool:
        """Whether it is in the same function, in one called there, or back in the caller."""
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
        self._met = {function: 1} if function is not None else {}


def _plain(frame: Frame) -> bool:
    """Whether a frame is the program's own, or Python's."""
    return frame.within is not None or (not frame.native and package(frame.file) == "python")
