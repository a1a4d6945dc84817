"""Pools of multiprocessing: which workers have a task, and whose task went with a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.churn import short_lived
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.doing import POOLS, QUEUES, frames_of
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.needs import WHY_LEFT
from hangtop_core.analysis.verdict.outofmemory import child_facts
from hangtop_core.analysis.verdict.programs import (
    dying,
    gone_facts,
    programs,
    seen_facts,
    told_children,
)
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import on, tails
from hangtop_core.logs.meaning.steps import KILLS
from hangtop_core.model.frames import library_run, plain_name
from hangtop_core.text.clean import duration
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame, Process

LATER_S = 2.0
"""Seconds by which workers of one pool are started apart at most; later ones replace others."""


def in_pool(case: Case, subject: Subject) -> bool:
    """Whether a rank waits for what a multiprocessing.Pool makes."""
    run = library_run(stack_of(case.snapshot.stacks, subject))
    return any(part in frame.file for frame in run for part in POOLS)


def pool_workers(
    case: Case, subject: Subject, children: Sequence[Process]
) -> tuple[list[Process], list[Process]]:
    """The workers of a rank's pool, and those of them that have a task."""
    found = {c.pid: _worker(frames_of(case, subject, c)) for c in children}
    workers = [c for c in children if found[c.pid] is not None]
    return workers, [c for c in workers if found[c.pid] == "busy"]


def at_task(case: Case, subject: Subject, children: Sequence[Process]) -> str:
    """What those workers of a multiprocessing.Pool do that have a task."""
    workers, busy = pool_workers(case, subject, children)
    if not busy:
        return ""
    idle = len(workers) - len(busy)
    more = f"; {idle} of its {len(workers)} workers wait for tasks" if idle else ""
    return f"for a task of its pool, in {told_children(case, subject, busy)}{more}"


def _lost(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Who waits for a pool of which nobody has a task: whoever had it is gone."""
    for subject in left:
        if subject.activity.kind != "child" or not in_pool(case, subject):
            continue
        children = programs(subject)
        workers, busy = pool_workers(case, subject, children)
        if not workers or busy or dying(case, subject):
            continue
        began = min(c.started_at for c in workers)
        late = [c for c in workers if c.started_at - began > LATER_S]
        all_of_it = f"all {len(workers)} workers of it wait"
        text = (
            f"for a task of its pool, but {all_of_it if len(workers) > 1 else 'its worker waits'} "
            "for tasks: most likely another one has gone with the task it had"
        )
        if late:
            text += (
                f"; pid {late[0].pid} was started {duration(late[0].started_at - began)} after the "
                "others, as in the place of one that has gone"
            )
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case, f"{who([subject])} waits at {subject.activity.at}", case.since(subject), text
            ),
            evidence=(
                *seen_facts(case, subject, workers),
                *child_facts(case, subject, short_lived(subject.rank, case.at)),
                *gone_facts(case, subject),
                *common_facts(case, [subject]),
            ),
            steps=(
                *(on(subject, *text) for text in tails(subject.rank)),
                on(subject, *KILLS),
                Advice("a pool does not notice a worker that dies: concurrent.futures does"),
            ),
        )


def _worker(stack: Sequence[Frame]) -> str | None:
    """Whether a process is a worker of a pool, `idle` or `busy`; None for anything else."""
    names = [(plain_name(frame.name), any(part in frame.file for part in POOLS)) for frame in stack]
    at = next((i for i, one in enumerate(names) if one == ("worker", True)), None)
    if at is None:
        return None
    waits = at > 0 and names[at - 1][0] == "get" and stack[at - 1].file.endswith(QUEUES)
    return "idle" if waits else "busy"


LOST = Rule(
    cause="queue-wait",
    title="A pool has lost a worker, and the task that this had",
    seen="A rank waits for a result of a multiprocessing.Pool, and all its workers wait for tasks: "
    "the one that had the task is gone, and nobody will put the result into the pool's queue.",
    excluded="A worker has a task, or they end as fast as they are started: `child-process-wait`.",
    confidence=0.9,
    next_steps=("Look for a worker that was killed", "Use concurrent.futures, which notices that"),
    find=_lost,
    needs=WHY_LEFT,
)
