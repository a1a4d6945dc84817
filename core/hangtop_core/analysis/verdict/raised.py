"""Ranks that have left by an exception what others are in, and wait elsewhere: they never come.

That is seen in two ways. A rank is in the `except` of the `try` in which the others are; or a
traceback in the logs goes through the line at which the others are in the function in which they
part, and this rank has left the loops and the `try` that are there.
"""

from __future__ import annotations

import re
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import block_at, loops, parting, stack_of
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.logfacts import SHORTLY_S, overtaken
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import MORE_OR_LESS, More
from hangtop_core.analysis.verdict.recorderfacts import apart, flight_facts, held
from hangtop_core.analysis.verdict.sentences import is_are, several, who
from hangtop_core.analysis.verdict.waitclasses import MAX_CLASSES
from hangtop_core.logs.meaning.known import KNOWN
from hangtop_core.logs.parsing.blocks import GOES_ON
from hangtop_core.model.frames import is_library, plain_name, where
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.callers import Block
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.file_log import Call, Record
    from hangtop_core.model.snapshot import Frame

SURE = 0.92
"""Confidence where those who have left are in the `except`."""
_ALIKE = frozenset({"collective", "backward", "work-wait"})
"""What ranks wait in that have left, or are left alone."""
_FOLLOWS = frozenset(row.code for row in KNOWN if row.part in ("timeout", "cascade"))
"""Errors of those who waited in vain: they have left since another rank did not come."""
_WORD = re.compile(r"\w+")
_AT_END = re.compile(r"StopIteration|StopAsyncIteration|EndOf|Exhausted")
"""What is caught where data is over."""


class Raised(NamedTuple):
    """What shows that ranks have left by an exception the line at which others are."""

    here: Frame
    """Where the others are in the function in which they part."""
    handler: str = ""
    """``train.py:12 (`except ValueError:`)``, where those who have left are in one."""
    error: Record | None = None
    """The exception, where it is in the logs."""


class Tried(NamedTuple):
    """A `try` in which some are, and one of its `except`, in which others are."""

    begin: int
    """The first line in it."""
    handler: Block

    def caught(self, error: Record, line: int) -> bool:
        """Whether this `except` names the class of an error, or all, and a line is in the `try`."""
        words = set(_WORD.findall(self.handler[1].partition(" as ")[0]))
        name = error.text.partition(":")[0].strip().rpartition(".")[2]
        takes = words == {"except"} or words & {name, "Exception", "BaseException"}
        return bool(takes) and self.begin <= line < self.handler[0]


def raised(case: Case, past: Sequence[Subject], inside: Sequence[Subject]) -> Raised | None:
    """What shows that some have left by an exception the line at which others still are."""
    mine = stack_of(case.snapshot.stacks, past[0])
    if not case.said.tracebacks and not any(map(_handlers, mine)):
        return None
    theirs = stack_of(case.snapshot.stacks, inside[0])
    depth = parting(theirs, mine)
    if depth is None:
        return None
    here, there = theirs[-1 - depth], mine[-1 - depth]
    if is_library(here) or here.within is None or there.within is None:
        return None
    tried = _handler(here, there)
    handler = tried.handler if tried else None
    left = handler or _out_of_try(here, there)
    caller = theirs[-depth] if depth else None
    error = _printed(case, past, here, caller, tried) if left else None
    if handler is None and error is None:
        return None
    return Raised(here, block_at(there, handler) if handler else "", error)


def _handlers(frame: Frame) -> bool:
    """Whether a frame is in an `except` of its function."""
    return any(text.startswith("except") for _, text in frame.beside or ())


def _handler(here: Frame, there: Frame) -> Tried | None:
    """The `except` that the second frame is in, where the first one is in the `try` of that.

    Before an `except` around a line is told what its own `try` begins with.
    """
    known, shared = there.beside or (), here.beside or ()
    for begin, block in pairwise(known):
        own = block[1].startswith("except") and block not in shared
        own = own and not _AT_END.search(block[1])
        if own and begin[0] <= here.line < block[0]:
            return Tried(begin[0], block)
    return None


def _out_of_try(here: Frame, there: Frame) -> bool:
    """Whether an exception that left the first line can have led to the second.

    Where that has left a loop, the `try` has to be around the loop: else it went on in that.
    """
    left = [block for block in loops(here) or () if block not in (loops(there) or ())]
    own = [block for block in there.beside or () if block not in (here.beside or ())]
    return not left or any(line <= left[0][0] and line <= here.line for line, _ in own)


def _printed(
    case: Case,
    past: Sequence[Subject],
    here: Frame,
    caller: Frame | None,
    tried: Tried | None,
) -> Record | None:
    """The last exception in the logs that went through a line at which others still are.

    Through any line of a `try`, where those who have left are in an `except` of it that takes it.
    And no further: what also has its caller is a whole stack, or has ended its rank. Whose it is
    has to be told, or so few have printed it that it cannot be of all.
    """
    ranks = {s.number for s in past}
    found = [
        one
        for rank in (None, *sorted(ranks))
        for one in case.said.tracebacks.get(rank, ())
        if one.how not in GOES_ON
        and one.fields.get("known") not in _FOLLOWS
        and (one.rank is not None or int(one.fields.get("named", past[0].number)) in ranks)
        and _through(one, here, caller, tried)
    ]
    told = [one for one in found if one.rank is not None]
    count = sum(one.count for one in found)
    if {one.rank for one in told} != ranks and not len(ranks) <= count < len(case.subjects):
        return None
    last = max(told or found, key=lambda one: (_last(one) or 0.0, one.order))
    return None if overtaken(case, [_last(last)]) else last


def _last(one: Record) -> float | None:
    """When an error was printed the last time, by its own clock."""
    again = one.again or one
    return again.at if again.exact else None


def _through(error: Record, here: Frame, caller: Frame | None, tried: Tried | None) -> bool:
    calls = error.calls
    for n, call in enumerate(calls):
        further = n > 0 and caller is not None and _is_at(calls[n - 1], caller)
        caught = tried is not None and _is_in(call, here) and tried.caught(error, call.line)
        if (_is_at(call, here) or caught) and not further:
            return True
    return False


def _is_at(call: Call, frame: Frame) -> bool:
    return call.line == frame.line and _is_in(call, frame)


def _is_in(call: Call, frame: Frame) -> bool:
    """Whether it is a call in the function of a frame."""
    same = plain_name(call.name) == plain_name(frame.name)
    return same and call.file.rpartition("/")[2] == frame.file.rpartition("/")[2]


def caught(case: Case) -> Iterator[Hit]:
    """Ranks that wait elsewhere since an exception has led them away from where others wait."""
    classes = [some for _, some in case.waiting_classes[:MAX_CLASSES]]
    if case.suspects or not 2 <= len(case.waiting_classes) <= MAX_CLASSES:
        return
    if any(some[0].activity.kind not in _ALIKE for some in classes):
        return
    for past, inside in permutations(classes, 2):
        found = raised(case, past, inside)
        if found is not None:
            yield _hit(case, past, inside, found)
            return


def left_by(found: Raised, past: Sequence[Subject], inside: Sequence[Subject]) -> str:
    """`left train.py:41 (main), where rank 0 still is, by an exception, KeyError: 'x' at ...`."""
    said = f"left {where(found.here)}, where {name_ranks(inside)} still "
    said += f"{is_are(inside, 'is', 'are')}, by an exception"
    if found.error is not None:
        said += f", {found.error.text.rstrip('.')}{found.error.from_where}"
    if found.handler:
        said += f", and {is_are(past, 'is', 'are')} in what handles that, {found.handler}"
    return said


def also(case: Case, past: Sequence[Subject]) -> str:
    """`It has left ... by an exception, ...`, where others wait; empty where nothing shows it."""
    site = past[0].activity.site
    known = case.said.tracebacks or (site is not None and _handlers(site))
    for _, inside in case.waiting_places[:1] if known else ():
        found = raised(case, past, inside)
        if found is not None:
            them = is_are(past, "It has", "They have")
            return f"{them} {left_by(found, past, inside)}"
    return ""


def _hit(case: Case, past: Sequence[Subject], inside: Sequence[Subject], found: Raised) -> Hit:
    first, other, numbers = past[0].activity, inside[0].activity, [s.number for s in past]
    one = apart(case, numbers)
    waits = several(first.text.rstrip(","), past)
    if first.kind == "collective":
        waits = f"{is_are(past, 'waits', 'wait')} in {held(case, past[0])}"
    waits = f"{waits} at {first.at} {case.since(past[0])}".rstrip()
    raiser = found.error.where if found.error is not None else None
    return Hit(
        subjects=tuple(past),
        summary=(
            f"{who(past)} {is_are(past, 'has', 'have')} {left_by(found, past, inside)}. "
            f"{is_are(past, 'It', 'They')} {waits}, and {is_are(past, 'does', 'do')} not come "
            f"where {name_ranks(inside)} {several(other.text.rstrip(','), inside)} at {other.at}"
        ),
        evidence=(
            *_log_facts(past, found),
            *flight_facts(one, numbers),
            *common_facts(case, past),
        ),
        steps=(
            Advice("log that exception where it is handled")
            if raiser is None
            else Advice(f"look at what raises that at {raiser.text}"),
            Advice(
                "let a rank that has an error end, so that the launcher ends all: no collective "
                "in its `except` or `finally`"
            ),
            Advice("or let all ranks skip the same step"),
        ),
        confidence=SURE if found.handler else None,
    )


def _log_facts(past: Sequence[Subject], found: Raised) -> Iterator[Evidence]:
    """Whose a traceback is that the log does not mark with a rank, by the line before, or by what
    it goes through."""
    if found.error is not None and found.error.rank is None:
        named, error = found.error.fields.get("named"), found.error.text
        told = f"the line before the traceback of {error} names rank {named}; it"
        told = told if named else f"the log does not tell whose {error} is: its traceback"
        at, names = found.here, name_ranks(past)
        text = f"{told} goes through {where(at)}, which {names} {is_are(past, 'has', 'have')} left"
        if not any(_is_at(call, at) for call in found.error.calls):
            text = f"{told} goes through the `try` of which {names} {is_are(past, 'is', 'are')} "
            text += "in the `except`"
        yield fact("log", None, text)


CAUGHT = Rule(
    cause="missing-collective",
    title="A rank has left by an exception what others are in",
    seen="All wait in communication. In the function in which they part, as the program's file has "
    "it, some are in the `except` (of another error than the end of data) of the `try` in which "
    "the others are; or a traceback in the logs goes through the line at which the others are, and "
    "those who have left it are past a `try` around the loops there, too. The traceback has to be "
    "theirs, or be printed by as many as have left, of which none is another rank's by the line "
    "before it. They are blamed, and the exception is named.",
    excluded="Somebody is outside communication. Others have waited in vain, which is what the "
    f"exception says. The job was seen to get on over {SHORTLY_S:.0f} seconds after it.",
    confidence=0.88,
    next_steps=("Mend what raised it", "Let a rank that has an error end"),
    find=lambda case, left: case.caught,
    needs=(More("logs", "which exception that was"), *MORE_OR_LESS),
)
