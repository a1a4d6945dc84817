"""The calls of the user's code that led a rank to where it waits, and what they stand in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import is_library, place, where

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.model import Frame

_LOOP = re.compile(r"(async\s+)?for\b|while\b")
_OF_RANK = re.compile(
    r"rank|is_(?:\w+_)?(?:main|master|chief|coordinator)|(?:main|master)_process|process_index"
    r"|process_zero|global_zero|is_primary",
    re.IGNORECASE,
)
"""Names by which programs ask which rank they are: torch, Lightning, Accelerate, transformers."""
Block = tuple[int, str]


def stack_of(stacks: Mapping[str, tuple[Frame, ...]], subject: Subject) -> tuple[Frame, ...]:
    """Frames of a subject's main thread, innermost first."""
    sample = subject.rank.sample
    if sample is None or not sample.threads:
        return ()
    return stacks.get(sample.threads[0].stack, ())


def calls(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """The user's own frames of a stack, innermost first."""
    return tuple(frame for frame in stack if not is_library(frame))


def parting(one: Sequence[Frame], other: Sequence[Frame]) -> int | None:
    """How many outermost frames two stacks share before they are at two lines of one function.

    None where they part in two functions, or nowhere.
    """
    for depth, (left, right) in enumerate(zip(reversed(one), reversed(other), strict=False)):
        if (left.file, left.name) != (right.file, right.name):
            return None
        if left.line != right.line:
            return depth
    return None


def by_callers(
    stacks: Mapping[str, tuple[Frame, ...]], members: Sequence[Subject]
) -> dict[str, list[Subject]]:
    """Subjects at one call by the callers in which they differ: `, called from train.py:7 (fit)`.

    One entry without a text where all came the same way.
    """
    alike: dict[str | None, list[Subject]] = {}
    for subject in members:
        sample = subject.rank.sample
        key = sample.threads[0].stack if sample is not None and sample.threads else None
        alike.setdefault(key, []).append(subject)
    if len(alike) == 1:
        return {"": list(members)}
    ways: dict[tuple[Frame, ...], list[Subject]] = {}
    for some in alike.values():
        ways.setdefault(calls(stack_of(stacks, some[0])), []).extend(some)
    if len(ways) == 1 or () in ways:
        return {"": list(members)}
    shared = 0
    while len({way[shared : shared + 1] for way in ways}) == 1:
        shared += 1
    found: dict[str, list[Subject]] = {}
    for way, some in ways.items():
        caller = f", called from {where(way[shared])}" if shared < len(way) else ""
        found.setdefault(caller, []).extend(some)
    return found


def loops(frame: Frame) -> tuple[Block, ...] | None:
    """The loops around a frame in its function, outermost first; None where nobody knows."""
    if frame.within is None:
        return None
    return tuple(block for block in frame.within if _LOOP.match(block[1]))


def conditions(frame: Frame) -> tuple[Block, ...]:
    """The conditions around a frame in its function, outermost first."""
    return tuple(block for block in frame.within or () if not _LOOP.match(block[1]))


def rank_conditions(frame: Frame) -> tuple[Block, ...]:
    """Those of them that ask for the rank."""
    return tuple(block for block in conditions(frame) if _OF_RANK.search(block[1]))


def worded(text: str) -> str:
    """A condition in a sentence: `if rank == 0:`, or the `else` of it."""
    before, other, condition = text.rpartition("else: ")
    return f"the `else` of `{condition}`" if other and not before else f"`{text}`"


def block_at(frame: Frame, block: Block) -> str:
    """`train.py:56 (`for x in loader:`)`, the block of a frame."""
    return f"{place(frame).rpartition(':')[0]}:{block[0]} (`{block[1]}`)"
