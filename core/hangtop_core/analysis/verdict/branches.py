"""What lines of the program tell of ranks that are elsewhere than most: conditions and loops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import besides
from hangtop_core.analysis.verdict.callers import conditions as around
from hangtop_core.analysis.verdict.callers import (
    guards,
    line_of,
    parted,
    parting,
    stack_key,
    stack_of,
    worded,
)
from hangtop_core.analysis.verdict.conditional import conditions
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.sentences import is_are
from hangtop_core.analysis.verdict.uneven import left_loop
from hangtop_core.model.frames import is_library

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.callers import Block
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame

_ALWAYS = re.compile(
    r"is_(?:initialized|available|distributed)|world_?size|num_processes|\bdebug|verbose|training\b",
    re.IGNORECASE,
)
"""In conditions that are the same on all ranks of a job."""
_HELD = re.compile(r"(?:async\s+)?with\b|except\b|finally\b")
_SHOWN = 2


def branch(case: Case, odd: Sequence[Subject], most: Sequence[Subject]) -> str:
    """`. Rank 0 is under ...`, or has left a loop, or gone on: why ranks may be elsewhere."""
    others = besides(most, odd)
    if len({s.activity.site for s in odd}) > 1 or not others:
        return ""
    if not {stack_key(s) for s in odd}.isdisjoint(map(stack_key, others)):
        return ""  # they came the same way
    names = f". {name_ranks(odd).capitalize()} {is_are(odd, 'is', 'are')}"
    if found := _shared(case, odd):
        return f"{names} {found}"
    ways = {stack_key(s): s for s in others}.values()
    left = {left_loop(case, odd[0], s) for s in ways}
    if len(left) == 1 and (loop := left.pop()):
        return f"{names} {loop}, in which {name_ranks(others)} still are"
    found = _shared(case, odd, any_at_all=True)
    passed, turned = _ways(case, odd[0], others)
    others_are = f"{name_ranks(others)} {is_are(others, 'is', 'are')}"
    if passed and (found or turned):
        return f"{names} {found or turned}, and {others_are} {passed}: one of these differs"
    if passed:
        return _came(passed, odd, others)
    tries = {_in_try(case, odd[0], s) for s in ways}
    if len(tries) == 1 and (caught := tries.pop()):
        return (
            f". {others_are.capitalize()} in the `try` that begins with {caught}, and "
            f"{name_ranks(odd)} past it: {is_are(odd, 'it', 'they')} may have caught an exception "
            "there"
        )
    if found:
        return f"{names} {found}, and {name_ranks(others)} not"
    return f"{names} {turned}, where {name_ranks(others)} may have turned back" if turned else ""


def turned_back(case: Case, odd: Sequence[Subject], others: Sequence[Subject]) -> str:
    """`. Ranks 0-1 are past `if x: continue` (train.py:9), where rank 2 most likely turned back`.

    Of ranks that have left out, in this round or the one before, what others wait in.
    """
    passed, _ = _ways(case, odd[0], others, ahead=True)
    return _came(passed, odd, others) if passed else ""


def left_out(case: Case, odd: Sequence[Subject], others: Sequence[Subject]) -> str:
    """The same of ranks that are further on, where nothing of their own may have led them there."""
    passed, turned = _ways(case, odd[0], others)
    if not passed or turned or _shared(case, odd, any_at_all=True):
        return ""
    return _came(passed, odd, others)


def _came(passed: str, odd: Sequence[Subject], others: Sequence[Subject]) -> str:
    gone = "where" if passed.startswith("past") and " and " not in passed else "by which"
    gone += f" {name_ranks(odd)} most likely {'turned back' if gone == 'where' else 'did not come'}"
    are = is_are(others, "is", "are")
    return f". {name_ranks(others).capitalize()} {are} {passed}, {gone}"


def _in_try(case: Case, odd: Subject, other: Subject) -> str:
    """`step(batch)` (train.py:9), what begins a `try` that one rank is past and another one in."""
    stacks = case.snapshot.stacks
    mine, theirs = stack_of(stacks, odd), stack_of(stacks, other)
    met = parted(theirs, mine)
    if met is None:
        return ""
    here, there = met
    past = [block for block in there.beside or () if block not in (here.beside or ())]
    found = [b for b in past if b[0] <= here.line < there.line and not _HELD.match(b[1])]
    return f"`{found[-1][1]}` ({line_of(here, found[-1])})" if found else ""


def _ways(
    case: Case, odd: Subject, others: Sequence[Subject], ahead: bool = False
) -> tuple[str, str]:
    """`under `if x:` (train.py:9)`, by which others came where a rank further on did not come.

    And past what that rank has come meanwhile, which may have been in an earlier round. Empty where
    nobody knows, where it is not further on in the function in which they part, and where the
    others have come by several ways. ``ahead``: it may be further up, in the next round.
    """
    if any(s.activity.site != others[0].activity.site for s in others):
        return "", ""
    told = {_way(case, odd, s, ahead) for s in {stack_key(s): s for s in others}.values()}
    return told.pop() if len(told) == 1 else ("", "")


def _way(case: Case, odd: Subject, other: Subject, ahead: bool) -> tuple[str, str]:
    """The same of one of those others."""
    stacks = case.snapshot.stacks
    mine, theirs = stack_of(stacks, odd), stack_of(stacks, other)
    depth = parting(theirs, mine)
    if depth is None:
        return "", ""
    here, there = theirs[-1 - depth], mine[-1 - depth]
    if is_library(here) or None in (here.within, there.within):
        return "", ""
    if there.line == here.line or (there.line < here.line and not ahead):
        return "", ""
    shared = {block for block in here.within or () if block in (there.within or ())}
    came = [
        (frame, block)
        for frame in theirs[: len(theirs) - depth]
        if not is_library(frame)
        for block in sorted((*around(frame), *guards(frame)), reverse=True)
    ]
    turned = [(there, block) for block in guards(there) if block[0] > here.line]
    return _worded(came, shared), _worded(turned, shared)


def _worded(found: Sequence[tuple[Frame, Block]], shared: Container[Block]) -> str:
    """`under `if x:` (train.py:9) and past ...`; empty where there are too many to tell any."""
    told = [
        f"{worded(block[1])} ({line_of(frame, block)})"
        for frame, block in found
        if block not in shared and not _ALWAYS.search(block[1])
    ]
    return " and ".join(told) if len(told) <= _SHOWN else ""


def _shared(case: Case, odd: Sequence[Subject], any_at_all: bool = False) -> str:
    """`under ... (train.py:64)`, the condition that all of them are under, and nobody else."""
    found = conditions(case, odd, any_at_all)
    named = {f"{worded(block[1])} ({line_of(frame, block)})" for frame, block in found.values()}
    return named.pop() if len(found) == len(odd) and len(named) == 1 else ""
