"""Those who wait for other ranks, and the loops of others: the ones that none of them is in.

A loop that a waiter is in, too, keeps nobody: it is that of the training.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from hangtop_core.model.frames import ENDLESS, LOOPS, plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Reader
    from hangtop_core.model.frames import Loop
    from hangtop_core.model.snapshot import Frame, Rank, StackSample

_INLINE = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
"""Functions that are loops themselves; what they go through stands in their line."""
_THINGS = re.compile(r"\bfor\s.+\sin\s|while .+# ends$")
_NEVER = re.compile(
    r"\bin\s+(?:\w+\.)*(?:count|repeat|cycle|iter)\s*\("
    r"|\brange\s*\([^)]*(?:\*\*|<<|\d[\d_]{7}|maxsize|inf)"
)
"""Of what there is always more. Who goes on to a number without a pause gets there."""


class Waiters:
    """The stacks of ranks that wait for others."""

    def __init__(self, reader: Reader, ranks: Sequence[Rank]) -> None:
        self._reader, self._ranks = reader, ranks

    def endless_loop(self, rank: Rank) -> Loop | None:
        """Return the outermost endless loop that a rank is in, and none of them."""
        own = self._endless_loops(rank.sample)
        return next((loop for loop in own if _place(loop) not in self._endless), None)

    def circle(self, rank: Rank) -> tuple[Loop, float] | None:
        """Return the outermost `while` that a rank goes round in, and since when."""
        sample = rank.sample
        if sample is None or not sample.loops or not sample.threads:
            return None
        since = {(file, name, line): at for file, name, line, at in sample.loops}
        stack, called = self._reader.frames(sample.threads[0].stack), False
        for frame in reversed(stack):
            if plain_name(frame.name) in _INLINE:
                return None
            taken = called or plain_name(frame.name) == "__iter__"
            called = False
            for line, text in frame.within or ():
                if (frame.file, line) in self._blocks or not text.startswith(LOOPS):
                    continue
                if text.startswith("while "):
                    if taken and ENDLESS.match(text):
                        continue  # of a generator, which others have left for a while
                    at = since.get((frame.file, frame.name, line))
                    return None if at is None else ((frame, line, text), at)
                called = line == frame.line  # what it goes through is made, or asked for the next
                if not called:
                    return None
        return None

    def see_it_end(self, stack: Sequence[Frame]) -> bool:
        """Whether a stack stands in loops that none of them is in, all of which come to an end."""
        ends = False
        for frame in stack:
            if frame.within is None:
                return False  # a library's, or nobody knows
            loops = [text for line, text in frame.within if (frame.file, line) not in self._blocks]
            loops = [text for text in loops if text.startswith(LOOPS)]
            if plain_name(frame.name) in _INLINE:
                loops.append(frame.source or "")
            if not all(_THINGS.search(text) and not _NEVER.search(text) for text in loops):
                return False
            ends = ends or bool(loops)
            if (frame.file, frame.name) in self._functions:
                return ends
        return False

    @cached_property
    def _samples(self) -> dict[str, StackSample]:
        """One sample for each stack of a main thread."""
        found = (rank.sample for rank in self._ranks)
        return {one.threads[0].stack: one for one in found if one is not None and one.threads}

    @cached_property
    def _frames(self) -> list[Frame]:
        return [frame for stack in self._samples for frame in self._reader.frames(stack)]

    @cached_property
    def _endless(self) -> frozenset[LoopPlace]:
        samples = self._samples.values()
        return frozenset(_place(loop) for one in samples for loop in self._endless_loops(one))

    @cached_property
    def _blocks(self) -> frozenset[tuple[str, int]]:
        """File and line of all loops and conditions that any of them is in."""
        return frozenset((one.file, line) for one in self._frames for line, _ in one.within or ())

    @cached_property
    def _functions(self) -> frozenset[tuple[str, str]]:
        return frozenset((one.file, one.name) for one in self._frames)

    def _endless_loops(self, sample: StackSample | None) -> tuple[Loop, ...]:
        """Those of a main thread, outermost first."""
        if sample is None or not sample.threads:
            return ()
        return self._reader.reading(sample.threads[0].stack).endless


LoopPlace = tuple[str, str, int]
"""File, function and line of a loop."""


def _place(loop: Loop) -> LoopPlace:
    frame, line, _ = loop
    return frame.file, frame.name, line
