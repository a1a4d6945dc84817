"""8,192 ranks cost little more than their distinct stacks, whatever happens to how many of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop_core.analysis.verdict import engine
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.wire.reports import LogPiece
from hangtop_core.model.descriptors import Descriptor, Holder
from hangtop_core.model.snapshot import DescriptorTable
from hangtop_core.stacks.merging import flatten, merge
from hangtop_core.state.outputs import Outputs
from support import situations
from support.build import NOW, World
from support.large import HANG_AFTER, Large, counted, operations
from support.situations import (
    BASE,
    FLOCK,
    FUTEX,
    PIPE_READ,
    POLL,
    RUN,
    SLEEP,
    STDIN_READ,
    WAITPID,
    Stack,
    c10d,
    frame,
    user,
    worker_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.model.snapshot import Snapshot


class Counting(Mapping[str, Stack]):
    """Stacks by key, counting how often one is looked at."""

    def __init__(self, stacks: Mapping[str, Stack]) -> None:
        self.stacks = stacks
        self.reads = 0

    def __getitem__(self, key: str) -> Stack:
        self.reads += 1
        return self.stacks[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stacks)

    def __len__(self) -> int:
        return len(self.stacks)


def large(ranks: int) -> tuple[Snapshot, Counting]:
    world = World()
    for number in range(ranks):
        if number == ranks // 2:
            world.add(user("cool_down", 41), SLEEP, node="n7")
        else:
            world.add(c10d("all_reduce", at=56 + number % 19), FUTEX, node=f"n{number // 8}")
    counting = Counting(world.stacks)
    snapshot = world.snapshot()
    return msgspec.structs.replace(snapshot, stacks=counting), counting


@pytest.mark.parametrize("ranks", [64, 2048])
def test_stacks_are_read_once_each_however_many_ranks_share_them(ranks: int) -> None:
    snapshot, counting = large(ranks)
    found = diagnose(snapshot, snapshot.jobs[0])
    assert found.verdicts[0].culprits[0].rank == ranks // 2
    assert counting.reads <= 20
    tree = merge(snapshot, snapshot.jobs[0])
    flatten(tree)
    assert counting.reads <= 20 * 4


def test_a_verdict_looks_at_each_rank_few_times() -> None:
    """By lines of Python that run: 500 for each rank. What rules share saves nearly half."""
    large = Large(24, hang_at=-1.0)
    large.hear(0.0)
    large.sample(0.5)
    large.change(hang_at=1.0)
    for at in range(1, 9):
        large.hear(float(at))
    large.sample(9.0)
    large.hear(30.0)
    snapshot, job, diagnosis = large.picture(30.0)
    assert diagnosis.verdicts[0].cause == "missing-collective"
    assert operations(lambda: diagnose(snapshot, job, HANG_AFTER)) < 500 * len(job.ranks)


FEW, MANY = 16, 128
FASTER = 1.2
"""How much more a rank of many may cost than a rank of few."""
DOES: dict[str, tuple[Stack | None, situations.Facts | None]] = {
    "child": (situations.CHILD, WAITPID),
    "compile": (situations.COMPILE, RUN),
    "destroy": (situations.DESTROY, FUTEX),
    "disk": (user("load", 7), situations.DISK),
    "fifo": (user("load", 7), situations.FIFO_OPEN),
    "futex": (user("load", 7), FUTEX),
    "gone": (None, None),
    "init": (situations.INIT, POLL),
    "inline": (situations.inline("load", 7), RUN),
    "join": (situations.JOIN, FUTEX),
    "lock": (user("load", 7, "with lock:"), FUTEX),
    "no data": (situations.LOADER, POLL),
    "other collective": (c10d("barrier", at=70), FUTEX),
    "pdb": (situations.PDB, STDIN_READ),
    "pipe": (user("load", 7), PIPE_READ),
    "queue": (situations.QUEUE, FUTEX),
    "recv": (situations.RECV, FUTEX),
    "run": (user("load", 7), RUN),
    "save": (situations.SAVE, RUN),
    "sleep": (user("load", 7), SLEEP),
    "stdout": (user("log", 7), situations.PIPE_WRITE),
    "stop": (user("load", 7), situations.STOP),
    "traced": (user("load", 7), situations.TRACED),
    "unread": (None, FUTEX),
    "url": (situations.URLLIB, situations.RECVFROM),
}
"""Stack and thread facts of half of the ranks, each on a node of its own; all others wait."""


def half(ranks: int, does: str) -> Snapshot:
    world = World()
    stack, facts = DOES[does]
    for number in range(ranks):
        if number % 2 == 0:
            world.add(c10d("all_reduce"), FUTEX, node=f"n{number}")
        elif facts is not None:
            world.add(stack, facts, node=f"n{number}")
        else:
            left = {"exit_code": 1, "gone_at": NOW - 100.0}
            world.add(None, None, node=f"n{number}", state="exited", process=left)
    return world.snapshot()


def each_elsewhere(ranks: int) -> Snapshot:
    """Half of them sleep, each at a line of its own."""
    world = World()
    for number in range(ranks):
        odd = number % 2
        world.add(user("f", number) if odd else c10d("all_reduce"), SLEEP if odd else FUTEX)
    return world.snapshot()


def with_workers(ranks: int) -> Snapshot:
    """Each waits for data, and a worker of it is stuck."""
    world = World()
    for number in range(ranks):
        rank = world.add(situations.LOADER, POLL, node=f"n{number}")
        world.give_children(rank, [world.worker(rank, worker_in("get", 5), PIPE_READ)])
    return world.snapshot()


def with_locks(ranks: int) -> Snapshot:
    """On one node each waits for a lock that another one has."""
    world = World()
    for number in range(ranks):
        holder = Holder(4000 + 10 * ((number + 1) % ranks), "python3", "S", "holds the lock")
        lock = Descriptor(9, "file", f"/{number}.lock", locked="waiting", holders=(holder,))
        table = DescriptorTable(NOW, (), waiting_locks=(lock,))
        world.add(user("fetch", 40, "fcntl.flock(f, LOCK_EX)"), FLOCK, descriptors=table)
    return world.snapshot()


def in_loops(ranks: int) -> Snapshot:
    """Half of them run in a loop without an end."""
    world = World()
    loop = msgspec.structs.replace(frame("spin", "train.py", 50), within=((47, "while True:"),))
    for number in range(ranks):
        odd = number % 2
        stack = (loop, *BASE) if odd else c10d("all_reduce")
        recent = {"same_functions_since": NOW - 1.0} if odd else {}
        world.add(stack, RUN if odd else FUTEX, sample=recent, node=f"n{number}")
    return world.snapshot()


ERROR = """Traceback (most recent call last):
  File "/home/me/train.py", line 40, in <module>
ValueError: bad value
"""
RETRY = "upload failed: Service Unavailable, retry in 3 s\n" * 5


CHILD_DIED = """Process SpawnProcess-1:
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
ValueError: bad value
"""


def with_dead_children(ranks: int) -> Snapshot:
    """Half of them wait for a child that has died, as the log of each tells."""
    world, outputs = World(), Outputs()
    for number in range(ranks):
        path, node, odd = f"/logs/{number}.out", f"n{number}", number % 2
        stack = situations.QUEUE if odd else c10d("all_reduce")
        rank = world.add(stack, FUTEX, node=node, process={"outputs": (path,)})
        pid = rank.process.pid
        if odd:
            zombie = world.process(pid + 5000, ("Z", *[None] * 4), role="subprocess", ppid=pid)
            world.give_children(rank, [(zombie, None)])
            text = CHILD_DIED
            piece = LogPiece(NOW, path, pid, 1, "1:2", len(text), NOW - 1.0, text=text)
            outputs.fold(node, piece, 0.0)
    return msgspec.structs.replace(world.snapshot(), outputs=outputs.read())


def with_logs(ranks: int, text: str, dead: bool) -> Snapshot:
    """Each has a log of its own."""
    world, outputs = World(), Outputs()
    for number in range(ranks):
        path, node = f"/logs/{number}.out", f"n{number}"
        prints = {"outputs": (path,)}
        if dead:
            left = {**prints, "exit_code": 1, "gone_at": NOW - 100.0}
            rank = world.add(None, None, node=node, state="exited", process=left)
        elif number % 2:
            rank = world.add(user("load", 7), SLEEP, node=node, moved_at=NOW, process=prints)
        else:
            rank = world.add(c10d("all_reduce"), FUTEX, node=node, process=prints)
        piece = LogPiece(NOW, path, rank.process.pid, 1, "1:2", len(text), NOW - 1.0, text=text)
        outputs.fold(rank.node, piece, 0.0)
    return msgspec.structs.replace(world.snapshot(), outputs=outputs.read())


SITUATIONS: dict[str, Callable[[int], Snapshot]] = {
    **{does: lambda ranks, does=does: half(ranks, does) for does in DOES},  # type: ignore[misc]
    "each elsewhere": each_elsewhere,
    "in loops": in_loops,
    "died, as they printed": lambda ranks: with_logs(ranks, ERROR, True),
    "try again, as they print": lambda ranks: with_logs(ranks, RETRY, False),
    "with dead children": with_dead_children,
    "with locks": with_locks,
    "with workers": with_workers,
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_rank_is_compared_with_all(situation: str) -> None:
    """By lines of Python that run for a verdict, for each of few and of many ranks."""
    each = []
    for ranks in (FEW, MANY):
        snapshot = counted(SITUATIONS[situation](ranks))
        job = snapshot.jobs[0]
        assert engine.diagnose(snapshot, job).verdicts
        each.append(operations(partial(engine.diagnose, snapshot, job)) / ranks)
    assert each[1] < FASTER * each[0]
