"""Causes in data loading: dead, stuck or slow DataLoader workers."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict import locks
from hangtop_core.analysis.verdict.base import ALWAYS, LIKELY, Hit, Rule, Subject
from hangtop_core.analysis.verdict.busyloops import loop_of_its_own
from hangtop_core.analysis.verdict.doing import CONNECTED, asked, frames_of
from hangtop_core.analysis.verdict.evidence import common_facts, fact, stack_fact
from hangtop_core.analysis.verdict.needs import BY_WAIT, OF_CHILD, OPEN, WHY_LEFT
from hangtop_core.analysis.verdict.outofmemory import child_facts
from hangtop_core.analysis.verdict.pipes import connected
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import dump_step, on, sockets_step
from hangtop_core.analysis.verdict.workers import (
    Worker,
    file_of,
    lock_of,
    looking,
    program_of,
    worker_facts,
)
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.text.clean import how_ended, plural
from hangtop_core.text.commands import Advice, Sign
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Process

_AT_WORK = frozenset({"busy", "importing", "compiling"})
_TAKES = frozenset({"lock", "waiting", "file-lock", "sleep"})
"""What a worker may do that takes a lock which processes share."""
SPINS = 0.8
"""Confidence where the worker runs: what it computes may just take that long."""
FOLLOWS = 0.75
"""Confidence where a process of another rank that is not in a collective has what it waits for."""


def _workers(case: Case, subject: Subject) -> list[Worker]:
    found = []
    rank = subject.rank
    for child in rank.children:
        if child.role != "dataloader-worker" or child.ended:
            continue
        standing = case.watcher.worker(rank, child)
        if standing is not None:
            activity = case.reader.process(child, rank.child_samples.get(child.pid))
            found.append(Worker(child, activity, standing))
    return sorted(found, key=lambda w: w.standing.since)


def _waiting_for_data(left: Sequence[Subject]) -> Iterator[Subject]:
    return (s for s in left if s.activity.kind in ("data", "pin-memory"))


def _dead(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in _waiting_for_data(left):
        workers = [c for c in subject.rank.children if c.role == "dataloader-worker"]
        alive = [c for c in workers if not c.ended]
        replaced = {c.worker_id for c in alive}
        gone = [
            c
            for c in workers
            if c.ended and (c.exit_code or (c.worker_id not in replaced and c.state == "Z"))
        ]
        numbers = sorted(c.worker_id for c in alive if c.worker_id is not None)
        lacking = sorted(set(range(numbers[-1])) - set(numbers)) if numbers else []
        if gone:
            text = ", ".join(_death(child) for child in gone[:4])
        elif lacking and len(numbers) == len(alive):
            text = f"{_numbered(lacking)} missing: {_numbered(numbers)} left"
        elif not alive and subject.activity.op in ("_try_get_data", "_get_data"):
            text = "no worker process is left"
        else:
            continue
        yield Hit(
            subjects=(subject,),
            summary=sentence(case, f"{who([subject])} waits for DataLoader workers, but {text}"),
            evidence=(
                fact("process", subject.number, text),
                *child_facts(case, subject, gone),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(subject, Sign.KERNEL_LOG, Sign.PIPE, "grep", "-i", "-e", "oom", "-e", "killed"),
                on(subject, "df", "-h", "/dev/shm"),  # noqa: S108 - a command for people
                Advice("run with num_workers=0 to see the worker's own error"),
            ),
        )


def _numbered(numbers: Sequence[int]) -> str:
    """`worker 0 is`, or `workers 1-3 are`."""
    return f"worker {numbers[0]} is" if len(numbers) == 1 else f"workers {fold(numbers)} are"


def _death(child: Process) -> str:
    how = "is gone" if child.exit_code is None else how_ended(child.exit_code)
    number = "" if child.worker_id is None else f" {child.worker_id}"
    return f"worker{number} (pid {child.pid}) {how}"


def _stuck(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in _waiting_for_data(left):
        stuck = [
            w
            for w in _workers(case, subject)
            if not w.standing.gets_on
            and (w.activity.kind not in _AT_WORK or _spins(case, subject, w))
        ]
        if not stuck:
            continue
        first = stuck[0]
        place = f"{first.activity.text} at {first.activity.at}"
        lock, by_others = lock_of(case, subject, first)
        file = lock or file_of(case, subject, first)
        crossed = _crossed(case, subject, stuck)
        many = len(stuck) > 1 and not crossed
        more = f"(and {plural(len(stuck) - 1, 'more worker')})" if many else ""
        parts = (case.lasting(first.standing.since), more, f"on {file}" if file else "")
        long = " ".join(part for part in parts if part)
        waits = not file and first.activity.family in CONNECTED
        to = connected(subject.rank, [first.process.pid]) if waits else ""
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits for data: {first.name} {place}",
                f"{long}{to}{program_of(case, subject, first)}{crossed}",
            ),
            evidence=(
                *(fact for worker in stuck[:4] for fact in worker_facts(case, subject, worker)),
                *common_facts(case, [subject]),
            ),
            steps=(
                *looking(subject, first),
                Advice("DataLoader(timeout=...) turns this into an error"),
            ),
            confidence=SPINS if first.activity.kind == "busy" else FOLLOWS if by_others else None,
            needs=asked(subject, first.process, first.activity),
        )


def _spins(case: Case, subject: Subject, worker: Worker) -> bool:
    """Whether a worker is in a `while`, and has long neither left its functions nor read data.

    What goes from one thing to the next may just take that long.
    """
    busy = worker.activity.kind == "busy" and case.progress.state == "hung"
    if not busy or worker.standing.stalled_s < case.hang_after:
        return False
    blocks = [b for f in frames_of(case, subject, worker.process) for b in f.within or ()]
    return any(text.startswith("while ") for _, text in blocks)


def _crossed(case: Case, subject: Subject, stuck: Sequence[Worker]) -> str:
    """That two workers most likely wait for each other's locks, as the lines of both name them.

    Both have to wait for what a process can have that is not theirs: fork makes of a lock of
    threads one of each process.
    """
    frames = [(w, frames_of(case, subject, w.process)) for w in stuck if w.activity.kind in _TAKES]
    between = [(w, stack) for w, stack in frames if locks.between_processes(stack)]
    for (a, one), (b, other) in combinations(between, 2):
        both = locks.crossed(one, other)
        if both is not None:
            return (
                f": most likely {a.name} wants at {a.activity.at} `{both[0].name}`, which {b.name} "
                f"has since {both[0].at}, and that one wants at {b.activity.at} "
                f"`{both[1].name}`, which the first one has since {both[1].at}"
            )
    return ""


def _is_brief(case: Case) -> bool:
    """Whether ranks make progress, and nobody was seen to wait for long, now or in a step."""
    brief = case.progress.state == "progressing" and case.waited_s < STALLED_AFTER_S
    return brief and case.step_times is None


def _starved(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if _is_brief(case):
        return
    for subject in _waiting_for_data(left):
        workers, likely = _workers(case, subject), False
        if workers:
            first = max(workers, key=lambda w: w.standing.since)
            text = f"{first.name} {first.activity.text} at {first.activity.at}"
            text += ", and gets on" if first.standing.gets_on else ""
            likely = not first.standing.gets_on and case.progress.state == "progressing"
        else:
            text = "all its DataLoader workers are idle or give no stack"
        yield Hit(
            subjects=(subject,),
            summary=sentence(case, f"{who([subject])} waits for data: {text}"),
            evidence=(
                *(f for w in workers[:4] for f in worker_facts(case, subject, w)),
                *common_facts(case, [subject]),
            ),
            steps=(
                *(dump_step(subject, pid=w.process.pid) for w in workers[:2]),
                *(
                    sockets_step(subject, w.process.pid, "from whom, and how fast")
                    for w in [w for w in workers if w.activity.kind == "remote"][:1]
                ),
                Advice("more workers, a larger prefetch_factor, or less work per sample"),
            ),
            confidence=LIKELY if likely or not workers else None,
            needs=asked(subject, workers[0].process, workers[0].activity) if workers else (),
        )


def _inline(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if _is_brief(case):
        return
    for subject in left:
        activity = subject.activity
        busy = activity.kind == "busy"
        if busy and case.progress.state == "hung":
            continue  # it never comes back
        if not activity.loading or activity.kind not in (
            "sleep",
            "busy",
            "waiting",
            "inline-data",
            "unknown",
        ):
            continue
        seen = stack_fact(case, subject)
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} loads data in its main thread (num_workers=0): it "
                f"{activity.text} at {activity.at}",
                case.since(subject),
            ),
            evidence=(
                *([seen] if seen else []),
                *common_facts(case, [subject])[1:],
            ),
            steps=(
                Advice("use num_workers > 0"),
                dump_step(subject, "--native"),
            ),
            needs=OPEN.get(activity.family or "", ()),
            # A loop that it stays in may have no end.
            confidence=LIKELY if busy and loop_of_its_own(case, subject) else None,
        )


DEAD = Rule(
    cause="dataloader-worker-dead",
    title="A DataLoader worker is gone",
    seen="The rank is in DataLoader._try_get_data and a worker process is gone, a zombie or "
    "missing among its siblings.",
    excluded="All workers are alive.",
    confidence=0.88,
    next_steps=("Look for an OOM kill", "Check /dev/shm", "Run with num_workers=0"),
    find=_dead,
    decisive=True,
    needs=WHY_LEFT,
)
STUCK = Rule(
    cause="dataloader-worker-stuck",
    title="A DataLoader worker is stuck",
    seen="The rank is in DataLoader._try_get_data and one of its workers sleeps in user code "
    "without moving; or runs in a `while` in the same functions for the hang time, and no data "
    "were read from it or by it meanwhile.",
    excluded="The worker computes or moves: `data-starved`.",
    confidence=0.93,
    next_steps=("Look at the file in the worker's descriptor table", "DataLoader(timeout=...)"),
    find=_stuck,
    needs=OF_CHILD,
)
STARVED = Rule(
    cause="data-starved",
    title="A rank waits for data that is slow to come",
    seen="The rank waits for its DataLoader while workers are at work, or loads data itself.",
    excluded="A worker is blocked: `dataloader-worker-stuck`. A main thread that runs never comes "
    "back: `busy-in-python`.",
    confidence=0.85,
    next_steps=("More workers, larger prefetch_factor", "Profile the dataset's __getitem__"),
    find=_starved,
    states=ALWAYS,
    needs=OF_CHILD,
)
INLINE = Rule(
    cause="data-starved",
    title=STARVED.title,
    seen=STARVED.seen,
    excluded=STARVED.excluded,
    confidence=0.75,
    next_steps=STARVED.next_steps,
    find=_inline,
    states=ALWAYS,
    needs=BY_WAIT,
)
