"""Whose locks and other ends of pipes are, in the list of open files and in traces."""

from __future__ import annotations

from hangtop.cli.files import end_of, holders
from hangtop.views.files import file_rows
from hangtop_core.analysis.ends import ends
from hangtop_core.descriptors import Descriptor, Holder
from hangtop_core.model import DescriptorTable
from support.build import NOW, World
from support.situations import FUTEX, user


def test_holders_that_are_ranks_are_named_so() -> None:
    world = World()
    world.waiters(2)
    lock = Descriptor(9, "file", "/x.lock", holders=(Holder(4010, "python3", "S", "waits for it"),))
    pipe = Descriptor(1, "pipe", "pipe:[7]", "w", holders=(Holder(321, "tee", "S", "reads"),))
    held = Descriptor(9, "file", "/x.lock", holders=(Holder(4010, "python3", "S", "holds it"),))
    table = DescriptorTable(NOW, (pipe, held), waiting_locks=(lock,))
    world.add(user("refresh", 77), FUTEX, descriptors=table)
    snapshot = world.snapshot()
    rank = snapshot.jobs[0].ranks[2]
    told = [row.holders for row in file_rows(rank, snapshot)]
    assert told == ["rank 1 waits for it", "rank 1 holds it", "tee (pid 321) reads"]
    names = {"pipe:[7]": "tee (pid 321) reads", "/x.lock": "rank 1 holds it"}
    assert ends(snapshot, rank) == names


def test_both_ends_of_a_pipe_in_one_rank_are_told_apart() -> None:
    """They have one name, by which only one of them was known."""
    world = World()
    ends_of = (
        Descriptor(4, "pipe", "pipe:[7]", "r", holders=(Holder(4000, "python3", "S", "writes"),)),
        Descriptor(5, "pipe", "pipe:[7]", "w", holders=(Holder(4000, "python3", "S", "reads"),)),
    )
    table = DescriptorTable(NOW, ends_of)
    world.waiters(1)
    snapshot = world.snapshot()
    rank = snapshot.jobs[0].ranks[0]
    pid = rank.process.pid
    named = holders(table, snapshot, rank.node)
    who = f"rank {rank.rank}" if pid == 4000 else "python3 (pid 4000)"
    assert named == {"fd 4": f"{who} writes", "fd 5": f"{who} reads"}
    assert [end_of(one) for one in ends_of] == ["fd 4", "fd 5"]
