"""Ranks that are not there any more, of a job all of whose ranks are on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.layout import place_text
from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import absent, fact
from hangtop_core.analysis.verdict.exited import exit_steps
from hangtop_core.analysis.verdict.lost import LEFT
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.jobs.joining import master, size_name
from hangtop_core.text.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.analysis.verdict.case import Case


def _left_here(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks that are not there, where all have met at an address that leads nowhere else."""
    node, meets = _one_machine(case)
    seats = seats_here(case)
    gone = any(s.activity.kind in GONE for s in left)
    if not seats or gone or any(LEFT.find(case, left)):
        return
    yield Hit(
        subjects=(),
        absent=absent(seats),
        summary=sentence(
            case,
            f"{place_text(seats)} {'has' if len(seats) == 1 else 'have'} left: no such process on "
            f"{node}",
        ),
        evidence=(
            fact(
                "environment",
                case.subjects[0].number,
                f"{size_name(case.job)} is {case.job.world_size}, and the ranks have met at "
                f"{meets}, which leads to no other machine; {len(case.subjects)} are there",
            ),
        ),
        steps=exit_steps(case, case.subjects[0].rank),
    )


def seats_here(case: Case) -> list[Seat]:
    """Return the missing ranks that must have been on the one machine of the job."""
    node, _ = _one_machine(case)
    unplaced = [s for s in case.seats if s.node is None and not s.beside] if node else ()
    numbered = all(s.rank.local_rank == s.number for s in case.subjects)
    return [
        replace(s, node=node, local=s.rank if numbered else None, beside=True) for s in unplaced
    ]


def _one_machine(case: Case) -> tuple[str, str]:
    """The node that all ranks must be on, and the address that says so; empty where none does."""
    if not case.seats or not case.waiters or case.joining or case.job.unnumbered:
        return "", ""
    told = master(case.subjects[0].rank.process)
    if told is None or not is_loopback(told[0]) or len(case.own_nodes) != 1:
        return "", ""
    return case.subjects[0].rank.node, told[0]


LEFT_HERE = Rule(
    cause="rank-exited",
    title="A rank is not there, and all have met on one machine",
    seen="The ranks have met at a loopback address (MASTER_ADDR), and not all of their world are "
    "on that node any more.",
    excluded="A rank that is seen to have left. No rank has met another one yet. Processes of the "
    "job whose rank cannot be read.",
    confidence=0.85,
    next_steps=("Read the end of that rank's log", "Ask the kernel log for OOM kills"),
    find=_left_here,
    needs=(More("kernel log", "whether the kernel ended it"),),
)
