"""Causes that the state of a process alone gives away: gone, stopped, traced, frozen."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.case import name_ranks
from hangtop_core.analysis.verdict.evidence import (
    alike,
    common_facts,
    fact,
    is_are,
    process_fact,
    sentence,
    waiting_facts,
    who,
)
from hangtop_core.diagnosis import Culprit, JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Rank

_EXITED_STATES: frozenset[JobState] = frozenset({"hung", "unknown", "starting", "exited"})


def _exited(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    gone = [s for s in left if s.activity.kind in ("exited", "zombie")]
    failed = [s for s in gone if s.rank.process.exit_code]
    if failed and case.progress.state == "exited":
        # The first failure takes the others down: launchers kill the rest.
        first = min(failed, key=lambda s: s.rank.process.gone_at or case.at)
        gone = [first]
    for group in alike(gone, lambda s: (s.activity.kind, s.rank.process.exit_code)):
        when = min((s.rank.process.gone_at or case.at for s in group), default=case.at)
        ago = f"{case.ago(when)[4:]} ago" if case.ago(when) else ""
        yield Hit(
            subjects=group,
            summary=sentence(case, who(group), group[0].activity.text, ago),
            evidence=(
                *(fact("process", s.number, f"pid {s.pid} {s.activity.text}") for s in group[:4]),
                *waiting_facts(case),
            ),
            steps=_exit_steps(group[0].rank),
        )
    if case.progress.state != "exited":
        yield from _vanished(case)


def _exit_steps(rank: Rank) -> tuple[str, ...]:
    # stderr first: that is where a traceback is.
    told = reversed(rank.process.outputs)
    outputs = [path for path in told if path.startswith("/") and "log" in path]
    steps = [f"tail -n 50 {path}" for path in dict.fromkeys(outputs)]
    return (*steps, "journalctl -k --since -1h | grep -i -e oom -e killed -e segfault")


def _vanished(case: Case) -> Iterator[Hit]:
    """Ranks that the launcher of this node must have started, and that are no longer there.

    torchrun, accelerate and deepspeed tell every rank how many there are on its node
    (LOCAL_WORLD_SIZE, LOCAL_SIZE).
    """
    nodes: dict[tuple[str, str | None], list[Rank]] = defaultdict(list)
    for rank in case.job.ranks:
        group = rank.process.env.get("GROUP_RANK")
        nodes[rank.node, group].append(rank)
    for (node, _), ranks in nodes.items():
        gone = _missing_here(ranks)
        if not gone or not case.waiters:
            continue
        absent = tuple(Culprit(number, node, None, local) for number, local in gone)
        numbers = [number for number, _ in gone]
        here = fact(
            "environment",
            None,
            f"the launcher started {len(ranks) + len(gone)} ranks on {node} (LOCAL_WORLD_SIZE); "
            f"{len(ranks)} are there",
        )
        verb = "has" if len(numbers) == 1 else "have"
        yield Hit(
            subjects=(),
            absent=absent,
            summary=sentence(case, f"{name_ranks(numbers)} {verb} left: no such process on {node}"),
            evidence=(here, *waiting_facts(case)),
            steps=_exit_steps(ranks[0]),
            confidence=0.9,
        )


def _missing_here(ranks: Sequence[Rank]) -> list[tuple[int, int]]:
    """Global and local numbers of ranks that ought to be beside these."""
    env = ranks[0].process.env
    size = env.get("LOCAL_WORLD_SIZE") or env.get("LOCAL_SIZE") or ""
    local = {rank.local_rank for rank in ranks}
    if not size.isdecimal() or None in local or len(local) != len(ranks):
        return []
    base = ranks[0].rank - (ranks[0].local_rank or 0)
    if any(rank.rank - (rank.local_rank or 0) != base for rank in ranks):
        return []
    return [(base + one, one) for one in range(min(int(size), 1024)) if one not in local]


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
                case.since(group[0]),
            ),
            evidence=(*common_facts(case, group), *waiting_facts(case)),
            steps=tuple(f"kill -CONT {s.pid}" for s in group[:8]),
        )


def _traced(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    held = [s for s in left if s.activity.kind == "traced"]
    for group in alike(held, lambda s: (s.rank.process.tracer_pid, s.rank.node)):
        process = group[0].rank.process
        tracer = f"{process.tracer or 'a debugger'} (pid {process.tracer_pid})"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                is_are(group, "is", "are"),
                f"held by {tracer}, which traces",
                is_are(group, "it", "them"),
                case.since(group[0]),
            ),
            evidence=(*common_facts(case, group), *waiting_facts(case)),
            steps=(
                f"ps -o pid,user,etime,args -p {process.tracer_pid}",
                f"detach in that debugger, or end it: kill {process.tracer_pid}",
            ),
        )


def _frozen(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    frozen = [s for s in left if s.activity.kind == "frozen"]
    for group in alike(frozen, lambda s: (s.rank.process.cgroup, s.rank.node)):
        path = group[0].rank.process.cgroup or "its cgroup"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                is_are(group, "is", "are"),
                f"frozen with the cgroup {path}",
                case.since(group[0]),
            ),
            evidence=(*(process_fact(case, s) for s in group[:4]), *waiting_facts(case)),
            steps=(
                f"cat /sys/fs/cgroup{path}/cgroup.freeze",
                f"echo 0 > /sys/fs/cgroup{path}/cgroup.freeze",
                "scontrol show job (a suspended Slurm job is frozen like this)",
            ),
        )


RULES = (
    Rule(
        cause="rank-exited",
        title="A rank has left while others wait for it",
        seen="The process is gone or a zombie, or fewer ranks are on the node than its launcher "
        "started (LOCAL_WORLD_SIZE).",
        excluded="All ranks are there.",
        confidence=0.95,
        next_steps=("Read the end of that rank's log", "Ask the kernel log for OOM kills"),
        find=_exited,
        states=_EXITED_STATES,
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
        seen="cgroup.freeze of the rank's cgroup or of one above it.",
        excluded="The cgroup is not frozen.",
        confidence=0.95,
        next_steps=("Thaw the cgroup, or resume the suspended job",),
        find=_frozen,
        decisive=True,
    ),
)
