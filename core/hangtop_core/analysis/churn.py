"""Children that end as fast as they are started: that there are ever new ones is no progress."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import plain_name
from hangtop_core.analysis.idle import is_idle

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hangtop_core.analysis.activity import Reader
    from hangtop_core.model import Process, Rank

SHORT_S = 10.0
"""A child that ends within this has had no time to do much."""
LATELY_S = 60.0
_POOL, _TASK_LINE = "/multiprocessing/pool.py", 115
"""Where `worker` calls tasks, below where it calls the initializer: CPython 3.8 to 3.14."""
SEVERAL = 3
"""So many of one kind in that time are started again and again."""


def churned(rank: Rank, at: float, reader: Reader, pool: bool = False) -> tuple[Process, ...]:
    """The short-lived children of one command line that have left lately, oldest first.

    Empty where there are few of them, where one of their kind has lived for longer, or where one
    has ended well: so do workers that are to take few tasks each, and programs that are run one
    after the other.

    Args:
        rank: whose children.
        at: now.
        reader: knows the stacks that some of them were sampled in.
        pool: whether others than the main thread start them; else one has to have failed, as far
            as was seen: how a child has ended is seen only until its parent asks.
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
    found = [
        some
        for kind, some in kinds.items()
        if kind not in stays
        and len(some) >= SEVERAL
        and _fail(some, pool)
        and not any(_in_task(rank, child, reader) for child in some)
    ]
    most = max(found, key=len, default=[])
    return tuple(sorted(most, key=lambda child: child.started_at))


def _fail(some: list[Process], pool: bool) -> bool:
    codes = {child.exit_code for child in some if child.exit_code is not None}
    return 0 not in codes and (pool or bool(codes))


def _in_task(rank: Rank, child: Process, reader: Reader) -> bool:
    """Whether a worker of a pool was seen in a task, or waiting for one: it had come so far."""
    sample = rank.child_samples.get(child.pid)
    if sample is None or not sample.threads:
        return False
    frames = reader.frames(sample.threads[0].stack)
    if is_idle(frames):
        return True
    for inner, outer in pairwise(frames):
        if plain_name(outer.name) == "worker" and outer.file.endswith(_POOL):
            maps = plain_name(inner.name) in ("mapstar", "starmapstar")
            return maps or outer.line >= _TASK_LINE
    return False


def _kind(child: Process) -> Hashable:
    """Its command line; spawned workers of multiprocessing differ in numbers of descriptors."""
    if "--multiprocessing-fork" in child.cmdline:
        return "--multiprocessing-fork"
    return child.cmdline or child.comm
