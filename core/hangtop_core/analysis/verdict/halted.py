"""Causes that the state of a process alone gives away: stopped, traced, frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import left_at
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import common_facts, fact, process_fact
from hangtop_core.analysis.verdict.naming import tracer
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import on, on_node, thaw, who_is
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.text.clean import duration
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.text.commands import Step


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
            steps=tuple(on(s, "kill", "-CONT", s.pid) for s in group[:8]),
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
        return (Advice("look for the debugger outside of the container that this rank is in"),)
    return (
        on(subject, *who_is(pid)),
        on(subject, "kill", pid, why="detach in that debugger, or end it"),
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
                on_node(
                    group[0].rank.node,
                    "scontrol",
                    "show",
                    "job",
                    why="Slurm suspends jobs like this",
                ),
            ),
            late=_late(group),
        )


def _halted_for(case: Case, subject: Subject) -> str:
    """`for 12 s`, and how long it had got nowhere by then: to be held, a thread runs once more."""
    ran, left = subject.rank.moved_at, left_at(subject.rank)
    if ran is None or left is None or ran - left < STALLED_AFTER_S:
        return case.since(subject)
    held = case.lasting(ran) or "since a moment ago"
    return f"{held}, and had got nowhere for {duration(ran - left)} before that"


def _late(group: Sequence[Subject]) -> float | None:
    """When ranks were held, where all had got nowhere for long by then: people look with
    debuggers at jobs that hang."""
    times = [(s.rank.moved_at or 0.0, left_at(s.rank)) for s in group]
    late = all(left is not None and ran - left >= STALLED_AFTER_S for ran, left in times)
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
        cause="rank-stopped",
        title="A rank is stopped by a signal",
        seen="State T of the main thread: SIGSTOP, SIGTSTP or a debugger that left it so.",
        excluded="A tracer holds it (state t): `rank-traced`.",
        confidence=0.97,
        next_steps=("kill -CONT PID",),
        find=_stopped,
        decisive=True,
        complete="its state says it, and who sent the signal the kernel does not keep",
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
        complete="its state says it, and the kernel who traces it",
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
        complete="its group says it, and who wrote that the kernel does not keep",
    ),
)
