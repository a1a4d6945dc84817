"""Causes that a process gives away by being gone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.layout import by_node, place_text
from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import START_OR_END, Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.endings import error_of_somebody, of_what
from hangtop_core.analysis.verdict.evidence import absent, fact, place_facts
from hangtop_core.analysis.verdict.logfacts import error_text
from hangtop_core.analysis.verdict.lost import lost, own_error
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.network import leads_to
from hangtop_core.analysis.verdict.sentences import sentence, several, who
from hangtop_core.analysis.verdict.steps import first_errors, on_node, tails
from hangtop_core.logs.judging.ended import LATER, TOLD_TO
from hangtop_core.logs.meaning.steps import KILLS
from hangtop_core.text.clean import clean
from hangtop_core.text.launchers import starts_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Rank
    from hangtop_core.text.commands import Step

TOGETHER_S = 5.0
"""Seconds within which ranks leave that have done their work, or are ended by their launcher."""
FIRST_TO_LEAVE = 0.5
"""Confidence that a rank is to blame of which is only known that it has left before others."""
BESIDE_ANOTHER = 0.6
"""The same of one that has failed by an error of its own, where the kernel has ended another."""
_COMPLAINS = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|[Ff]atal|[Ee]rror:)")
"""What marks a line as one that may tell why a program ended right after it."""


def _exited(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    gone = [s for s in left if s.activity.kind in ("exited", "zombie")]
    if case.gave_up:
        gone = _before_they_gave_up(case, gone)
    confidence = None
    if case.progress.state == "exited" and not case.gave_up:
        first = _first_to_fail(case, gone)
        failed = [*first, *_failed_otherwise(case, gone, first)]
        # Of who is only known to have left before others it is not known that it has failed.
        told = failed or any(_follows(case, s) for s in case.subjects)
        confidence = None if told else FIRST_TO_LEAVE
        if failed and any(s.activity.kind in GONE for s in besides(case.subjects, left)):
            confidence = BESIDE_ANOTHER
        gone = failed or _first_to_leave(case, gone)
    for group in alike(gone, lambda s: (s.activity.kind, s.rank.process.exit_code, _own(case, s))):
        when = min((case.ended_at(s) or case.at for s in group), default=case.at)
        ago = case.ago(when)
        # That it is a zombie until somebody waits for it is evidence, and no news.
        ended = several(group[0].activity.text, group).partition(" and ")[0]
        if ago:  # it exited 0:12 ago, and has exited
            ended = ended.removeprefix("has ").removeprefix("have ")
            ended += "," if ended[-1:].isdigit() else ""
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                ended,
                ago,
                _said(case, group),
            ),
            evidence=(
                *(fact("process", s.number, f"pid {s.pid} {s.activity.text}") for s in group[:4]),
                *_told(case, group),
            ),
            steps=exit_steps(case, group[0].rank),
            confidence=confidence,
        )
    if case.progress.state != "exited":
        yield from _vanished(case)


def _before_they_gave_up(case: Case, gone: Sequence[Subject]) -> list[Subject]:
    """Ranks that left before others waited in vain for them; who has waited is no cause.

    Those that left just then were ended with the job.
    """
    began = min((case.ended_at(s) or case.at for s in case.gave_up), default=case.at)
    waited_for = besides(gone, case.gave_up)
    others = [s for s in waited_for if s.rank.process.exit_code not in TOLD_TO]
    ends = {id(s): s.rank.process.gone_at or case.ended_at(s) or case.at for s in others}
    return [s for s in others if ends[id(s)] < began - LATER]


def _first_to_fail(case: Case, gone: list[Subject]) -> list[Subject]:
    """The first failure takes the others down, as launchers end the rest: by logs, or by status."""
    told = case.said.first_of([s.number for s in gone])
    if told is not None:
        return [s for s in gone if s.number == told][:1]
    blamed = {one.rank for verdict in case.said.verdicts[:1] for one in verdict.culprits}
    if any(s.number in blamed for s in gone):
        return [s for s in gone if s.number in blamed]
    alone = [s for s in gone if not _follows(case, s)]
    if alone and len(alone) * 2 <= len(gone):
        return alone
    failed = [s for s in gone if s.rank.process.exit_code]
    return [min(failed, key=lambda s: s.rank.process.gone_at or case.at)] if failed else []


def _failed_otherwise(
    case: Case, gone: Sequence[Subject], first: Sequence[Subject]
) -> list[Subject]:
    """Ranks that have left by another error of their own than those that failed first."""
    known = {_own(case, s) for s in first}
    if not first or None in known:
        return []
    return [s for s in gone if (error := _own(case, s)) is not None and error not in known]


def _own(case: Case, subject: Subject) -> tuple[str, ...] | None:
    error = own_error(case, subject)
    return error.shape if error is not None else None


def _first_to_leave(case: Case, gone: Sequence[Subject]) -> list[Subject]:
    """Those that left before others; nobody where all left together, as when all is well."""
    ends = [case.ended_at(s) or case.at for s in case.subjects]
    last = max(ends, default=case.at)
    early = [s for s in gone if s.rank.process.exit_code is None]
    return [s for s in early if (case.ended_at(s) or case.at) < last - TOGETHER_S]


def _follows(case: Case, subject: Subject) -> bool:
    """Whether a rank has printed that it left because of another one."""
    error = case.said.errors.get(subject.number)
    return error is not None and (error.part == "timeout" or lost(case, subject) is not None)


def _said(case: Case, group: Sequence[Subject]) -> str:
    number = group[0].number
    text = error_text(case, number)
    if text:
        return f"with {text}"
    guess, line = _guessed(case, number), _last_line(case, number)
    if not guess and _COMPLAINS.search(line) and group[0].rank.process.exit_code not in TOLD_TO:
        return f"(the last that it printed: {line})"
    return guess


def _last_line(case: Case, number: int) -> str:
    """What a rank has printed last, where no error of it is known."""
    judged = case.said.judged
    if judged is None or number not in judged.last or case.said.errors.get(number) is not None:
        return ""
    return clean(judged.last[number][0], 200)


def _guessed(case: Case, number: int) -> str:
    """Of what a rank has most likely died of which no line of a log tells that it is its own."""
    error = None
    if case.said.errors.get(number) is None:
        error = error_of_somebody(case, number)
    if error is None:
        return ""
    return f"(most likely of {of_what(error)}: the log does not tell whose that is)"


def _told(case: Case, group: Sequence[Subject]) -> Iterator[Evidence]:
    """What others say of how some have left that have printed no error themselves."""
    if any(case.said.errors.get(s.number) is not None for s in group):
        return
    for verdict in case.said.verdicts[:1]:
        if {one.rank for one in verdict.culprits} & {s.number for s in group}:
            yield from verdict.evidence
            line = _last_line(case, group[0].number)
            if line and not any(line in one.text for one in verdict.evidence):
                yield fact("log", group[0].number, f"its last line: {line}")
            return
    for subject in case.subjects:
        error = lost(case, subject)
        if error is not None:
            yield fact("log", subject.number, f"it printed {error.text}")
            return


def exit_steps(case: Case, rank: Rank) -> tuple[Step, ...]:
    """Where it is told why a rank, or one beside it, has left."""
    steps = (on_node(rank.node, *step) for step in (*tails(rank), KILLS))
    return (*first_errors(rank, case.by_node[rank.node]), *steps)


def together(case: Case, seat: Seat) -> bool:
    """Whether one that lacks beside others was started with them, as launchers do."""
    beside = case.by_node.get(seat.node or "", ())
    return starts_together(case.job.launcher, (rank.process.env for rank in beside))


def _vanished(case: Case) -> Iterator[Hit]:
    """Ranks that must have been there and are not, on nodes that can be seen.

    Those that a launcher started beside others, and, once ranks have met, all that lack.
    """
    met = not case.joining
    lacking = [seat for seat in case.seats if seat.unseen is None]
    for some in by_node(s for s in lacking if met or (s.beside and together(case, s))):
        node = some[0].node
        if node is None or not case.waiters:
            continue
        beside = case.by_node.get(node, ())
        if some[0].beside:
            # A process that was told another one's rank is there in the place of one that lacks.
            twice = len(beside) - len({rank.rank for rank in beside})
            some = some[: max(len(some) - twice, 0)]
            if not some:
                continue
        verb = "has" if len(some) == 1 else "have"
        text, to_it = "no other rank of the job is there", leads_to(case, node)
        if some[0].beside:
            text = f"the launcher started {len(beside) + len(some)} ranks on {node} "
            text += f"(LOCAL_WORLD_SIZE); {len(beside)} are there"
        yield Hit(
            subjects=(),
            absent=absent(some),
            summary=sentence(
                case,
                f"{place_text(some)} {verb} left: no such process on {node}",
                _guessed(case, some[0].rank),
            ),
            evidence=(fact("environment", None, text), *to_it, *place_facts(some)),
            steps=exit_steps(case, beside[0]) if beside else (on_node(node, *KILLS),),
            confidence=0.9 if some[0].beside else 0.6 if some[0].named and not to_it else 0.8,
            decisive=not some[0].named,
        )


RULES = (
    Rule(
        cause="rank-exited",
        needs=(
            More("logs", "with what error it left"),
            More("kernel log", "whether the kernel ended it"),
        ),
        title="A rank has left while others wait for it",
        seen="The process is gone or a zombie; or fewer ranks are on the node than its launcher "
        "started (LOCAL_WORLD_SIZE); or the ranks had met, and none are left on a node that can be "
        "seen.",
        excluded="All ranks are there. All have left within 5 s, and neither an exit status nor a "
        "log tells of a failure. (With confidence 0.50 those that left earlier than the last.)",
        confidence=0.95,
        next_steps=("Read the end of that rank's log", "Ask the kernel log for OOM kills"),
        find=_exited,
        states=START_OR_END,
        decisive=True,
    ),
)
