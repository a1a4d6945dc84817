"""Causes that the state of a process alone gives away: gone, stopped, traced, frozen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.layout import by_node, place_text
from hangtop_core.analysis.standing import FLOOR_S, GONE, left_at
from hangtop_core.analysis.verdict.base import START_OR_END, Hit, Rule, Subject, besides
from hangtop_core.analysis.verdict.endings import error_of_somebody, of_what
from hangtop_core.analysis.verdict.evidence import (
    absent,
    alike,
    common_facts,
    fact,
    is_are,
    place_facts,
    process_fact,
    sentence,
    several,
    who,
)
from hangtop_core.analysis.verdict.logs import error_text
from hangtop_core.analysis.verdict.lost import lost, own_error
from hangtop_core.analysis.verdict.naming import tracer
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.network import leads_to
from hangtop_core.analysis.verdict.steps import Command, on, tails, thaw
from hangtop_core.launchline import starts_together
from hangtop_core.logs.ended import LATER, TOLD_TO
from hangtop_core.logs.steps import KERNEL_LOG
from hangtop_core.text import clean, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.steps import Step
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model import Rank

TOGETHER_S = 5.0
"""Seconds within which ranks leave that have done their work, or are ended by their launcher."""
FIRST_TO_LEAVE = 0.5
"""Confidence that a rank is to blame of which is only known that it has left before others."""
BESIDE_ANOTHER = 0.6
"""The same of one that has failed by an error of its own, where the kernel has ended another."""
_COMPLAINS = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|[Ff]atal|[Ee]rror:)")
"""What marks a line as one that may tell why a program ended right after it."""
_KERNEL_LOG = f"{KERNEL_LOG} | grep -i -e oom -e killed -e segfault"


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
        ago = f" {case.ago(when)[4:]} ago" if case.ago(when) else ""
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
                ended + ago,
                _said(case, group),
            ),
            evidence=(
                *(fact("process", s.number, f"pid {s.pid} {s.activity.text}") for s in group[:4]),
                *_told(case, group),
            ),
            steps=exit_steps(group[0].rank),
            confidence=confidence,
        )
    if case.progress.state != "exited":
        yield from _vanished(case)


def _before_they_gave_up(case: Case, gone: Sequence[Subject]) -> list[Subject]:
    """Ranks that left before others waited in vain for them; who has waited is no cause.

    Those that left just then were ended with the job.
    """
    waited = {id(s) for s in case.gave_up}
    began = min((case.ended_at(s) or case.at for s in case.gave_up), default=case.at)
    others = [s for s in gone if id(s) not in waited and s.rank.process.exit_code not in TOLD_TO]
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


def exit_steps(rank: Rank) -> tuple[Step, ...]:
    """Where it is told why a rank, or one beside it, has left."""
    return tuple(Command(rank.node, step) for step in (*tails(rank), _KERNEL_LOG))


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
            steps=exit_steps(beside[0]) if beside else (Command(node, _KERNEL_LOG),),
            confidence=0.9 if some[0].beside else 0.6 if some[0].named and not to_it else 0.8,
            decisive=not some[0].named,
        )


def _stopped(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    group = [s for s in left if s.activity.kind == "stopped"]
    if group:
        yield Hit(
            subjects=tuple(group),
            summary=sentence(
                case,
                who(group),
                is_are(group, "is", "are"),
                "stopped by a signal (state T)",
                _halted_for(case, group[0]),
            ),
            evidence=common_facts(case, group),
            steps=tuple(on(s, f"kill -CONT {s.pid}") for s in group[:8]),
            late=_late(group),
        )


def _traced(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    held = [s for s in left if s.activity.kind == "traced"]
    for group in alike(held, lambda s: (s.rank.process.tracer_pid, s.rank.node)):
        process = group[0].rank.process
        by = tracer(process) or "a debugger that is not seen from here"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                is_are(group, "is", "are"),
                f"held by {by}, which traces",
                is_are(group, "it", "them"),
                _halted_for(case, group[0]),
            ),
            evidence=common_facts(case, group),
            steps=_letting_go(group[0]),
            late=_late(group),
        )


def _letting_go(subject: Subject) -> tuple[Step, ...]:
    pid = subject.rank.process.tracer_pid
    if not pid:  # so the kernel tells it where the tracer is in no namespace of this node's probe
        return ("look for the debugger outside of the container that this rank is in",)
    return (
        on(subject, f"ps -o pid,user,etime,args -p {pid}"),
        on(subject, f"kill {pid}", words="detach in that debugger, or end it"),
    )


def _frozen(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    frozen = [s for s in left if s.activity.kind == "frozen"]
    for group in alike(frozen, lambda s: (_frozen_by(s), s.rank.node)):
        path = _frozen_by(group[0])
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                is_are(group, "is", "are"),
                f"frozen with the cgroup {path}",
                _halted_for(case, group[0]),
            ),
            evidence=(
                *(process_fact(case, s) for s in group[:4]),
                *(_below(s, path) for s in group[:4] if _is_below(s.rank.process.cgroup, path)),
            ),
            steps=(
                *thaw(group[0].rank.process, group[0].rank.node),
                Command(group[0].rank.node, "scontrol show job", "Slurm suspends jobs like this"),
            ),
            late=_late(group),
        )


def _halted_for(case: Case, subject: Subject) -> str:
    """`for 12 s`, and how long it had got nowhere by then: to be held, a thread runs once more."""
    ran, left = subject.rank.moved_at, left_at(subject.rank)
    if ran is None or left is None or ran - left < FLOOR_S:
        return case.since(subject)
    held = case.ago(ran) or "since a moment ago"
    return f"{held}, and had got nowhere for {duration(ran - left)} before that"


def _late(group: Sequence[Subject]) -> float | None:
    """When ranks were held, where all had got nowhere for long by then: people look with
    debuggers at jobs that hang."""
    times = [(s.rank.moved_at or 0.0, left_at(s.rank)) for s in group]
    late = all(left is not None and ran - left >= FLOOR_S for ran, left in times)
    return min(ran for ran, _ in times) if late else None


def _frozen_by(subject: Subject) -> str:
    process = subject.rank.process
    return process.frozen_by or process.cgroup or "its cgroup"


def _is_below(own: str | None, path: str) -> bool:
    """Whether the group of a process is below one by its folder; that of another controller, which
    version 1 may tell, is not."""
    above = (own or "").rpartition("/")[0]
    while above and not path.endswith(above):
        above = above.rpartition("/")[0]
    return bool(above)


def _below(subject: Subject, path: str) -> Evidence:
    """The group of a rank, which need not be the one that somebody froze."""
    return fact(
        "process",
        subject.number,
        f"its cgroup is {subject.rank.process.cgroup}; {path} is the one that was frozen",
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
    Rule(
        cause="rank-stopped",
        title="A rank is stopped by a signal",
        seen="State T of the main thread: SIGSTOP, SIGTSTP or a debugger that left it so.",
        excluded="A tracer holds it (state t): `rank-traced`.",
        confidence=0.97,
        next_steps=("kill -CONT PID",),
        find=_stopped,
        decisive=True,
    ),
    Rule(
        cause="rank-traced",
        title="A debugger holds a rank",
        seen="State t of the main thread and a tracer (TracerPid).",
        excluded="The rank runs although it is traced (strace): it is not held.",
        confidence=0.95,
        next_steps=("Detach or end the debugger",),
        find=_traced,
        decisive=True,
    ),
    Rule(
        cause="cgroup-frozen",
        title="A rank is frozen with its cgroup",
        seen="cgroup.events of the rank's cgroup says frozen (version 1: freezer.state). Named is "
        "the group that was frozen, its own or one above: cgroup.freeze, freezer.self_freezing.",
        excluded="The cgroup is not frozen.",
        confidence=0.95,
        next_steps=("Thaw the cgroup, or resume the suspended job",),
        find=_frozen,
        decisive=True,
    ),
)
