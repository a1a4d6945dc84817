"""What NCCL's RAS adds to verdicts, and the causes that it shows by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import ISSUED, More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import trace_steps
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence


def ras_facts(case: Case, blamed: Collection[int]) -> tuple[Evidence, ...]:
    """What RAS says of the ranks that are blamed; of nobody in particular where none is."""
    report = case.ras
    if report is None:
        return ()
    if not blamed:
        text = report.agreement
        return (fact("flight", None, text),) if text is not None else ()
    return tuple(
        fact("network" if reach else "flight", rank, text)
        for rank in sorted(blamed)[:SHOWN]
        for reach, text in report.about(rank)
    )


def _behind(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """All wait, and by their stacks alone none differs: who has launched less?"""
    if case.ras is None or left or not case.waiters:
        return
    for one in case.ras.behind:
        if not one.ranks or one.size * 2 > one.ahead + one.size:
            continue
        lacking = [s for s in case.waiters if s.number in one.ranks]
        if not lacking or len(lacking) == len(case.waiters):
            continue
        yield Hit(
            subjects=tuple(lacking),
            summary=sentence(
                case,
                f"{who(lacking)} {is_are(lacking, 'has', 'have')} {one.text}, as NCCL's RAS counts "
                f"them",
                blamed=lacking,
            ),
            evidence=common_facts(case, lacking),
            steps=(
                Advice(
                    "compare the stack of that rank with the others': look for a condition that "
                    "differs between ranks"
                ),
                *trace_steps(lacking[0]),
            ),
        )
        return


def _starting(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.ras is None:
        return
    for one, at_it, others in case.ras.starting:
        lacking = tuple(s for s in case.subjects if s.number in others)
        if not lacking or len(lacking) * 2 > one.size:
            continue
        there = name_ranks(at_it) if at_it else "others"
        does = "initializes" if len(at_it) == 1 else "initialize"
        yield Hit(
            subjects=lacking,
            summary=sentence(
                case,
                f"{there} {does} communicator {one.hash} of "
                f"{one.size} ranks, and {who(lacking)} {is_are(lacking, 'is', 'are')} not in it",
                blamed=lacking,
            ),
            evidence=common_facts(case, lacking),
            steps=(
                Advice(
                    "look at the stack of that rank; in its log NCCL_DEBUG=INFO tells `Init START` "
                    "without `Init COMPLETE`"
                ),
                *trace_steps(lacking[0]),
            ),
        )
        return


BEHIND = Rule(
    cause="missing-collective",
    title="By NCCL's own count a rank has launched fewer collectives",
    seen="All ranks wait, and none differs by its stack; NCCL's RAS, asked by `--ras`, counts "
    "fewer collectives of a kind launched by a minority of a communicator.",
    excluded="A rank is outside communication: it is what the others wait for. Counts are of five "
    "collectives only, without sends and receives, and of launches: what has finished is not told.",
    confidence=0.7,
    next_steps=("Compare its stack with the others'", "Dump the flight recorders"),
    find=_behind,
    needs=ISSUED,
)
STARTING = Rule(
    cause="nccl-init-incomplete",
    title="A communicator is being made, and a rank is not at it",
    seen="NCCL's RAS, asked by `--ras`, tells of a communicator that some ranks initialize while a "
    "minority does not answer for it.",
    excluded="The rank is explained by its stack or state.",
    confidence=0.7,
    next_steps=("Look at the stack of that rank", "Look for `Init COMPLETE` in its log"),
    find=_starting,
    needs=(More("logs", "whether it has begun: `Init START`"),),
)
