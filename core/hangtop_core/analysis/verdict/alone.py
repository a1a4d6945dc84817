"""What a program gives one rank to do alone, while all others wait for it by design."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from hangtop_core.analysis.verdict.callers import (
    FLAG,
    PAST,
    calls,
    line_of,
    rank_conditions,
    stack_of,
    worded,
)
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.sentences import is_are
from hangtop_core.model.frames import is_library, place, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.callers import Block
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame

_MEETS = frozenset(
    {
        "barrier",
        "monitored_barrier",
        "broadcast",
        "broadcast_object_list",
        "scatter",
        "scatter_object_list",
    }
)
"""What ranks call to wait for one, or for what it gives them: a part of no step."""
_FIRST = re.compile(
    r"(?:main|master|rank|zero|process|leader|chief|root|one)\w*_first\b|goes_first|\bfirst_rank",
    re.IGNORECASE,
)
"""Names of what lets one rank go first: of Accelerate, transformers, YOLO and what is made so."""
_RANK = r"(?:rank|procid|process_index)\w*[^=!<>a-z]{0,12}"
_NAMED = (
    r"(?:is_(?:\w+_)?(?:main|master|chief|coordinator|leader|primary|root)\w*"
    r"|\b(?:main|master|leader|chief)\b|(?:main|master)_process|process_zero|global_zero"
    r"|rank_?(?:zero|0)\b)"
)
_ROOT = r"(?:['\"]?0\b|(?:\w+\.)*\w*(?:main|master|root|leader|chief|zero))"
_MAIN = re.compile(
    rf"{_RANK}(?:==\s*{_ROOT}|is\s+0\b|<\s*1\b)|0\s*==\s*(?:\w+\.)*\w*rank"
    rf"|\bnot\s+(?:\w+\.)*\w*rank(?:\(\))?(?=\s*(?::|$|\)|and\b))|{_NAMED}",
    re.IGNORECASE,
)
"""Conditions that ask for the one rank that does what is done once."""
_OTHERS = re.compile(
    rf"{_RANK}(?:!=\s*{_ROOT}|>\s*0\b|>=\s*1\b)|\bnot\s+(?:\w+\.)*{_NAMED}"
    r"|\bif\s+(?:\w+\.)*(?:\w+_)?rank(?:\(\))?\s*(?::|and\b)",
    re.IGNORECASE,
)
"""Those that ask for all others."""
_WITH = ("with ", "async with ")
_ELSE = "else: "


def by_design(case: Case, group: Sequence[Subject]) -> str:
    """What tells that these are to do alone what the others wait for: `under `if rank == 0:``.

    Empty where nothing does, or where the others are in a part of a step.
    """
    waiting = [members[0] for _, members in case.waiting_classes]
    if not waiting or not all(
        s.activity.op in _MEETS or s.activity.kind == "store" for s in waiting
    ):
        return ""
    stacks = [stack_of(case.snapshot.stacks, s) for s in waiting]
    theirs = {
        (frame.file, block)
        for stack in stacks
        for frame in calls(stack)
        for block in (*(frame.within or ()), *(frame.beside or ()))
    }
    goes_first = all(s.number == 0 or s.rank.local_rank == 0 for s in group)
    for frame, block in _blocks(stack_of(case.snapshot.stacks, group[0])):
        turns = block[1].startswith(_WITH)
        if (frame.file, block) in theirs or (turns and not goes_first):
            continue
        if turns or _whom(block[1]) == "one":
            how = f"in `{block[1]}`" if turns else worded(block[1])
            return f"{how} ({line_of(frame, block)})"
    return _let_first(case, stacks) if goes_first else ""


def _blocks(stack: Sequence[Frame]) -> Iterator[tuple[Frame, Block]]:
    """Conditions on the rank around a rank's own frames, and `with` what lets one go first."""
    called: set[str] = set()
    for frame in stack:
        if not is_library(frame):
            for block in rank_conditions(frame, called):
                yield frame, block
            for block in frame.beside or ():
                if block[1].startswith(_WITH) and _FIRST.search(block[1]):
                    yield frame, block
        called.add(plain_name(frame.name))


def _whom(text: str) -> Literal["one", "others"] | None:
    """Whether a condition lets in the main rank alone, or all others; None where it is neither."""
    if text.startswith("@"):
        return "one"
    text, _, flag = text.partition(FLAG)
    asked = flag or text
    others = _OTHERS.search(asked) is not None
    if not others and not _MAIN.search(asked):
        return None
    name = flag.partition("=")[0].strip()
    turned = text.startswith((PAST, _ELSE))
    turned ^= bool(name) and re.search(rf"\bnot\s+(?:\w+\.)*{re.escape(name)}\b", text) is not None
    return "others" if others != turned else "one"


def _let_first(case: Case, stacks: Sequence[Sequence[Frame]]) -> str:
    """What tells of each of those that wait that it lets another one go first."""
    told = ""
    waits = f"{name_ranks(case.waiters)} {is_are(case.waiters, 'waits', 'wait')}"
    for stack in stacks:
        own = next((depth for depth, one in enumerate(stack) if not is_library(one)), len(stack))
        first = next((one for one in stack[: own + 1] if _FIRST.search(one.name)), None)
        under = [
            (frame, block)
            for frame in calls(stack)
            for block in rank_conditions(frame)
            if _whom(block[1]) == "others"
        ]
        if first is not None:
            told = told or f"as {waits} in {plain_name(first.name)} ({place(first)})"
        elif under:
            told = told or f"as {waits} {worded(under[0][1][1])} ({line_of(*under[0])})"
        else:
            return ""
    return told
