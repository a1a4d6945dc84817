"""Ranks that lost the connection to one that is not there: they follow from its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import absent, fact, place_facts
from hangtop_core.analysis.verdict.logfacts import SHORTLY_S, overtaken
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.logs.judging.ended import TOLD_TO
from hangtop_core.logs.meaning.steps import KILLS
from hangtop_core.text.commands import Advice, Command, texts
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.file_log import Record

_LOST = frozenset({"G1", "N6", "N10"})
"""Codes of lines that tell of a connection that the other end has closed."""
_STEPS = (
    Advice("Read the end of that rank's log: it says why it left, or stops where it was killed"),
    Command("", (*KILLS, "-e", "xid"), why="On its node"),
)


def lost(case: Case, subject: Subject) -> Record | None:
    """The error by which a rank has printed that the other end of a connection has left."""
    error = case.said.errors.get(subject.number)
    if error is None or error.part != "cascade":
        return None
    return error if error.fields.get("known", error.code) in _LOST else None


def own_error(case: Case, subject: Subject) -> Record | None:
    """The error of its own that a rank has printed before it left, and not because of another.

    None where its launcher has told it to end: what it printed then is not why.
    """
    error = case.said.errors.get(subject.number)
    if error is None or error.part != "root" or subject.rank.process.exit_code in TOLD_TO:
        return None
    return error


def _left_others(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks of no known node that are not there, while others have lost a connection."""
    some = [s for s in case.seats if s.node is None and not s.beside and s.unseen is None]
    if not some or len(some) > len(case.subjects) or any(s.activity.kind in GONE for s in left):
        return
    found = [(s, error) for s in left if (error := lost(case, s)) is not None]
    if not found or overtaken(case, [error.at for _, error in found]):
        return
    victims = tuple(subject for subject, _ in found)
    one = len(some) == 1
    yield Hit(
        subjects=(),
        absent=absent(some),
        explained=(*victims, *case.waiters),
        summary=sentence(
            case,
            f"{names(seat.rank for seat in some)} {'is' if one else 'are'} not among the processes "
            "that were found, and "
            f"{who(victims)} lost the connection to a rank: {'it has' if one else 'one has'} left",
        ),
        evidence=(
            *(fact("log", s.number, f"it printed {error.text}") for s, error in found[:4]),
            *place_facts(some),
        ),
        steps=_STEPS,
        confidence=0.85 if one else 0.6,
    )


LEFT = Rule(
    cause="rank-exited",
    title="A rank is not there, and others lost the connection to one",
    seen="Ranks of the job's world that were not found, and a line of another rank that the other "
    "end has closed the connection, as `Connection closed by peer`.",
    excluded="A rank that is seen to have left. Its node is known: other rules tell. The job was "
    f"seen to get on over {SHORTLY_S:.0f} seconds after that line.",
    confidence=0.85,
    next_steps=texts(_STEPS),
    find=_left_others,
    complete="the rank has neither a process nor a known node, and what the others printed was "
    "read",
)
