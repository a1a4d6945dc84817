"""Children that run and get nothing done: short-lived ones, those that only look, and others."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from hangtop_core.analysis.idle import is_idle
from hangtop_core.analysis.kernel import waits_in
from hangtop_core.model.frames import plain_name

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model.snapshot import Process, Rank, Thread

SHORT_S = 10.0
"""A child that ends within this has had no time to do much."""
LATELY_S = 60.0
"""Seconds for which one that has left counts among those that come and go."""
_POOL, _TASK_LINE = "/multiprocessing/pool.py", 115
"""Where `worker` calls tasks, below where it calls the initializer: CPython 3.8 to 3.14."""
STARTS = 2
"""So many that were met in their initializer, and none in a task, are no accident."""
PRODUCER_SHARE = 0.1
"""Cores a child uses that works on what its rank waits for; one that only watches uses less."""
LOOKS_SHARE = 0.003
"""Cores that take more than a look now and then."""
START_BYTES = 16 * 1024
"""What a shell reads until it sleeps the first time, with its script and a small program or two."""
SPARE = 0.25
"""By how much more may be read than by the sleeps; a program between them reads as much as one."""
SEVERAL = 3
"""So many of one kind in that time are started again and again."""


def churned(rank: Rank, at: float, reader: Reader) -> tuple[Process, ...]:
    """The short-lived children of one kind that have left lately and got nothing done.

    Oldest first. They are known to fail by an exit status, or as none of them was seen to get to a
    task. How a child has ended is seen only until its parent asks: where nothing is known of it,
    they are taken to be at work, as workers are that take one task each.
    """
    some = short_lived(rank, at)
    codes = {child.exit_code for child in some if child.exit_code is not None}
    seen = [_sampled(rank, child, reader) for child in some]
    fails = bool(codes) or seen.count("start") >= STARTS
    return some if fails and 0 not in codes and "task" not in seen else ()


def children_moved(rank: Rank, activity: Activity, at: float, reader: Reader) -> float | None:
    """When a child last ran; of those that end as fast as they are started none counts.

    Of a program that only looks at its clock, or at its connections, it counts when bytes moved:
    curl runs every second, also where nothing comes. Likewise of those that the rank does not wait
    for, as servers that only look whether somebody asks: they may do what the one needs it waits
    for, but then they are at work, or move much; exporters read a little all the time. Who has
    done nothing but sleep between two looks, by another `sleep` each time, does not get on.
    """
    moved = dict(rank.child_moved_at)
    others = set[int]() if activity.kind != "child" else aside(rank, activity.main)
    if others and _feed(rank, others):
        others = set()
    for child in rank.children if activity.kind == "child" else ():
        works = rank.child_cpu_share.get(child.pid, 1.0) >= PRODUCER_SHARE
        if child.pid in others and child.pid in moved and not works:
            moved[child.pid] = rank.child_much_at.get(child.pid, child.started_at)
        elif child.pid in moved and only_looks(rank, child):
            moved[child.pid] = rank.child_io_moved_at.get(child.pid, child.started_at)
    for shell, sleeps in _pausing(rank, at) if activity.kind == "child" else ():
        moved = {pid: when for pid, when in moved.items() if pid not in sleeps}
        moved[shell.pid] = shell.started_at
    if churned(rank, at, reader):
        old = (c for c in rank.children if c.gone_at is None)
        some = [at for c in old if (at := moved.get(c.pid, 0.0)) >= c.started_at + SHORT_S]
        return max(some, default=None)
    return max(moved.values(), default=None)


def _feed(rank: Rank, others: set[int]) -> bool:
    """Whether one of these children may write to a pipe that another one waits to read."""
    writers = (c.outputs[0] for c in rank.children if c.pid in others and c.outputs)
    if not any(one.startswith("pipe:") and one not in rank.process.outputs for one in writers):
        return False
    mains = (c.main_thread for c in rank.children if c.pid not in others)
    return any(waits_in(one) == "pipe-read" for one in mains)


def _pausing(rank: Rank, at: float) -> Iterator[tuple[Process, set[int]]]:
    """Children that have done nothing but start a `sleep` again and again, with the pids of these.

    What a program has read counts as its parent's, too, once it has ended: where that is what the
    sleeps read alone, none has run between them, however short.
    """
    below: dict[int, list[Process]] = defaultdict(list)
    for child in rank.children:
        below[child.ppid].append(child)
    for shell in rank.children:
        sleeps = below.get(shell.pid)
        if not sleeps or shell.gone_at is not None or any(one.comm != "sleep" for one in sleeps):
            continue
        shortest = min(map(_seconds, sleeps))
        each = max(one.meters.read_bytes or 0 for one in sleeps)
        moved, many = shell.meters.read_bytes, (at - shell.started_at) / max(shortest, 0.1)
        if moved is None or shortest <= 0 or each * many * (1 - SPARE) < START_BYTES:
            continue  # a second program would make no difference that can be seen
        moved += shell.meters.write_bytes or 0
        if len(shell.threads) <= 1 and moved <= START_BYTES + each * many * (1 + SPARE):
            yield shell, {one.pid for one in sleeps}


def _seconds(sleep: Process) -> float:
    """For how long a `sleep` sleeps; 0 where that is not known."""
    try:
        return float(sleep.cmdline[-1].removesuffix("s"))
    except (IndexError, ValueError):
        return 0.0


def only_looks(rank: Rank, child: Process) -> bool:
    """Whether a child without threads waits for connections, and computes next to nothing.

    One that sleeps in between may do its work in rounds.
    """
    main = child.main_thread
    if main is None or len(child.threads) > 1 or (child.thread_count or 1) > 1:
        return False
    waits = waits_in(main) == "poll"
    return waits and rank.child_cpu_share.get(child.pid, 1.0) < LOOKS_SHARE


def aside(rank: Rank, main: Thread | None) -> set[int]:
    """The children that a rank does not wait for, and what those have started, by pid.

    Empty where it is not known for which one it waits. Processes of its own program may do what
    that one waits for.
    """
    wanted = main.child if main is not None else None
    if wanted is None or all(child.pid != wanted for child in rank.children):
        return set()
    own = rank.process
    below = {
        child.pid
        for child in rank.children
        if child.ppid == own.pid
        and child.pid != wanted
        and (
            child.role != "subprocess"
            or _kind(child) not in ("--multiprocessing-fork", own.cmdline)
        )
    }
    found = set(below)
    while below:
        below = {child.pid for child in rank.children if child.ppid in below} - found
        found |= below
    return found


def short_lived(rank: Rank, at: float) -> tuple[Process, ...]:
    """The children of one command line that came and went lately, within seconds each.

    Empty where there are few of them, or where one of their kind has lived for longer.
    """
    kinds: dict[Hashable, list[Process]] = defaultdict(list)
    stays = set()
    for child in rank.children:
        if child.role != "subprocess" or child.ppid not in (rank.process.pid, 0, 1):
            continue
        kind = _kind(child)
        if child.gone_at is None:
            if at - child.started_at >= SHORT_S and not child.ended:
                stays.add(kind)
        elif child.gone_at > at - LATELY_S and child.gone_at - child.started_at < SHORT_S:
            kinds[kind].append(child)
    found = [some for kind, some in kinds.items() if kind not in stays and len(some) >= SEVERAL]
    most = max(found, key=len, default=[])
    return tuple(sorted(most, key=lambda child: child.started_at))


def _sampled(rank: Rank, child: Process, reader: Reader) -> str:
    """Whether a worker of a pool was seen in its initializer (`start`), or had come to tasks."""
    sample = rank.child_samples.get(child.pid)
    if sample is None or not sample.threads:
        return ""
    frames = reader.frames(sample.threads[0].stack)
    if is_idle(frames):
        return "task"
    for inner, outer in pairwise(frames):
        if plain_name(outer.name) == "worker" and outer.file.endswith(_POOL):
            maps = plain_name(inner.name) in ("mapstar", "starmapstar")
            return "task" if maps or outer.line >= _TASK_LINE else "start"
    return ""


def _kind(child: Process) -> Hashable:
    """Its command line; spawned workers of multiprocessing differ in numbers of descriptors."""
    if "--multiprocessing-fork" in child.cmdline:
        return "--multiprocessing-fork"
    return child.cmdline or child.comm
