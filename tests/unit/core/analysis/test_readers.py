"""A rank that waits for data of a process of its own, which has died; and what is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.build import World, judged
from support.situations import FUTEX, PIPE_READ, frame, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict
    from support.situations import Stack

RECV = (
    frame("Connection._recv", "py:multiprocessing/connection.py", 395),
    frame("Queue.get", "py:multiprocessing/queues.py", 103),
)
IN_READER = (*RECV, *user("ShardReader.__iter__", 61, "yield decode(queue.get())"))
IN_LOOP = (
    *RECV,
    *user("collect", 12, "part = self.parts.get()")[:1],
    *user("run", 40, "for batch in train_loader:"),
)
IN_ROLLOUT = (*RECV, *user("Learner.collect", 58, "rollout = self.rollouts.get()"))
OF_MODEL = (*RECV, *user("ModelLoader.wait", 9, "state = self.queue.get()"))
BEGIN = frame("BaseProcess._bootstrap", "py:multiprocessing/process.py", 314)
FULL = (
    frame("Queue.put", "py:multiprocessing/queues.py", 89),
    *user("read_shard", 44, "out.put(batch)"),
    BEGIN,
)
IO_WAIT = ("D", "folio_wait_bit_common", "read", 5, None)
READS = (*user("read_shard", 40, "data = file.read()"), BEGIN)


def verdict(stack: Stack, code: int | None = -11, live: Stack | None = None) -> Verdict:
    world = World()
    world.waiters(2)
    rank = world.add(stack, PIPE_READ)
    facts = ("Z", None, None, None, None)
    dead = world.process(5555, facts, role="subprocess", state="Z", exit_code=code)
    beside = world.process(5556, IO_WAIT if live is READS else FUTEX, role="subprocess")
    other = [(beside, world.sample(live, pid=5556))] if live is not None else []
    world.give_children(rank, [(dead, None), *other])
    return judged(world).verdicts[0]


@pytest.mark.parametrize(
    ("stack", "code", "live", "cause"),
    [
        (IN_READER, -11, None, "dataloader-worker-dead"),
        (IN_READER, 1, FULL, "dataloader-worker-dead"),
        (IN_LOOP, -9, None, "dataloader-worker-dead"),
        # That it has failed is not known, or another one may have to give it.
        (IN_READER, None, None, "queue-wait"),
        (IN_READER, -11, READS, "queue-wait"),
        # No data to train with.
        (IN_ROLLOUT, -11, None, "queue-wait"),
        (OF_MODEL, -11, None, "queue-wait"),
    ],
)
def test_cause(stack: Stack, code: int | None, live: Stack | None, cause: str) -> None:
    found = verdict(stack, code, live)
    assert (found.cause, [one.rank for one in found.culprits]) == (cause, [2])
    if code == -11 and cause != "queue-wait":
        assert "which was killed by SIGSEGV and is a zombie" in found.summary
