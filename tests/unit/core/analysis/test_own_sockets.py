"""Ranks that read from one another over connections of their own: who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, judged
from support.situations import FUTEX, RECVFROM, SLEEP, c10d, user
from support.verdicts import blamed

if TYPE_CHECKING:
    from support.situations import Stack

TAKE = user("take", 29, "part = self.stream.recv(count)")
REDUCE = c10d("all_reduce")
OWN_THREAD = ("answers", 9, user("answer", 70, "self.stream.sendall(reply)"), False)


def at(number: int, other: int) -> str:
    """The end of a rank of its connection to another one."""
    return f"127.0.0.1:{40000 + 10 * number + other}"


def table(number: int, *others: int, **queues: int) -> DescriptorTable:
    """Connections to other ranks, the first one as descriptor 17, from which all read here."""
    sockets = (
        Socket("tcp", "ESTABLISHED", at(number, one), at(one, number), **queues) for one in others
    )
    return DescriptorTable(
        NOW,
        tuple(
            Descriptor(17 + i, "socket", f"socket:[{i}]", socket=s) for i, s in enumerate(sockets)
        ),
    )


def world(*ranks: tuple[Stack, Any, DescriptorTable | None], threads: bool = False) -> World:
    """Ranks of one node; with threads of the program's own in all of them."""
    found = World()
    for stack, facts, descriptors in ranks:
        sample = {"others": (OWN_THREAD,)} if threads else {}
        found.add(stack, facts, descriptors=descriptors, sample=sample)
    return found


@pytest.mark.parametrize("reducing", [0, 1, 3])
@pytest.mark.parametrize("threads", [False, True])
def test_two_that_read_from_each_other_are_to_blame_whoever_else_waits(
    reducing: int, threads: bool
) -> None:
    pair = ((TAKE, RECVFROM, table(0, 1)), (TAKE, RECVFROM, table(1, 0)))
    found = judged(world(*pair, *((REDUCE, FUTEX, None),) * reducing, threads=threads))
    if threads and not reducing:
        assert found.verdicts[0].cause != "p2p-deadlock"  # a thread of theirs may send yet
        return
    (verdict,) = found.verdicts
    assert (verdict.cause, blamed(verdict)) == ("p2p-deadlock", [0, 1])
    assert "for rank 1 (at the other end of that)" in verdict.summary
    assert "nothing is on its way there" in verdict.summary
    assert any(one.text.endswith("ESTABLISHED = rank 1 on n1") for one in verdict.evidence)
    assert verdict.victims == tuple(range(2, 2 + reducing))


def test_a_circle_over_several_connections() -> None:
    ring = [(TAKE, RECVFROM, table(n, (n - 1) % 3, (n + 1) % 3)) for n in range(3)]
    (verdict,) = judged(world(*ring, (REDUCE, FUTEX, None))).verdicts
    assert (verdict.cause, blamed(verdict)) == ("p2p-deadlock", [0, 1, 2])


@pytest.mark.parametrize("queue", ["recv_queue", "send_queue"])
def test_where_something_is_on_its_way_they_do_not_only_wait_for_each_other(queue: str) -> None:
    late = table(1, 0, **{queue: 9})
    pair = ((TAKE, RECVFROM, table(0, 1)), (TAKE, RECVFROM, late))
    found = judged(world(*pair, *((REDUCE, FUTEX, None),) * 3))
    assert "p2p-deadlock" not in [one.cause for one in found.verdicts]


@pytest.mark.parametrize("known", [True, False])
def test_who_is_at_the_other_end_of_what_is_read_leads(known: bool) -> None:
    read = table(0, 1) if known else table(0, 1, peer_pid=4010)
    reads = (TAKE, RECVFROM, read)
    ahead = (REDUCE, FUTEX, table(1, 0) if known else None)
    (verdict,) = judged(world(reads, ahead, *((REDUCE, FUTEX, None),) * 2)).verdicts
    assert (verdict.cause, blamed(verdict)) == ("p2p-chain", [1])
    assert "rank 0 waits to read from a socket at train.py:29 (take), for rank 1" in verdict.summary
    asleep = (user("rest", 41), SLEEP, table(1, 0))
    verdict = judged(world(reads, asleep, *((REDUCE, FUTEX, None),) * 2)).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("missing-collective", [1])


def test_a_rank_with_threads_of_its_own_may_answer_by_one_of_them() -> None:
    reads = (TAKE, RECVFROM, table(0, 1))
    ahead = (REDUCE, FUTEX, table(1, 0))
    found = judged(world(reads, ahead, *((REDUCE, FUTEX, None),) * 2, threads=True))
    assert found.verdicts[0].cause == "remote-service-wait"
    assert blamed(found.verdicts[0]) == [0]
