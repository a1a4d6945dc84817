"""Whose locks and other ends of pipes are, in the list of open files and in traces."""

from __future__ import annotations

import pytest

from hangtop.cli.commands.files import end_of, holders, state_of
from hangtop.terminal.spans import plain
from hangtop.views.ranks.files import FILE_COLUMNS, file_rows
from hangtop_core.analysis.ends import ends
from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.snapshot import DescriptorTable
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


def test_positions_that_move_are_told_from_those_that_do_not() -> None:
    def at(when: float, *positions: int) -> DescriptorTable:
        files = tuple(
            Descriptor(7 + n, "file", f"/data/{n}", "r", position=far, size=4096)
            for n, far in enumerate(positions)
        )
        return DescriptorTable(when, (*files, Descriptor(3, "anon", "anon_inode:[eventpoll]")))

    first = at(NOW - 5, 100, 4096).after(None)
    assert [first.moves(one) for one in first.descriptors] == [None, None, None]
    table = at(NOW, 200, 4096).after(first)
    assert [table.moves(one) for one in table.descriptors] == [True, False, None]
    # So shortly after it tells nothing that it has not moved yet.
    soon = at(NOW + 0.1, 300, 4096).after(table)
    assert [soon.moves(one) for one in soon.descriptors] == [True, None, None]
    # Another file by the same number has not moved.
    other = DescriptorTable(NOW + 9, (Descriptor(7, "file", "/data/x", position=9, size=10),))
    assert other.after(table).moved == ()

    world = World()
    world.add(user("read", 77), FUTEX, descriptors=table)
    snapshot = world.snapshot()
    state = next(one for one in FILE_COLUMNS if one.key == "state")
    told = [plain(state.cell(row)) for row in file_rows(snapshot.jobs[0].ranks[0], snapshot)]
    assert told == ["200 B/4.0 KiB moves", "end of 4.0 KiB", "?"]


def test_a_lock_that_is_waited_for_is_one_row() -> None:
    world = World()
    holder = (Holder(4010, "python3", "S", "holds the lock"),)
    mine = Descriptor(9, "file", "/x.lock", "w", locked="waiting", holders=holder)
    table = DescriptorTable(NOW, (mine,), waiting_locks=(mine,))
    world.add(user("refresh", 77), FUTEX, descriptors=table)
    snapshot = world.snapshot()
    (row,) = file_rows(snapshot.jobs[0].ranks[0], snapshot)
    assert row.waiting


@pytest.mark.parametrize(
    ("item", "moves", "told"),
    [
        (Descriptor(1, "file", "/a", "w", position=0, size=0), False, ""),
        (
            Descriptor(1, "file", "/a", "r", position=5, size=1024),
            True,
            "at 5 B of 1.0 KiB, moves",
        ),
        (
            Descriptor(
                1, "file", "/n/a", "r", position=5, mount="/n", fstype="nfs4", server="filer:/n"
            ),
            False,
            "at 5 B, does not move, on /n: nfs4 of filer:/n",
        ),
        (
            Descriptor(1, "file", "/a", "w", locked="held", full="inodes", mount="/"),
            None,
            "lock held, no inodes left on /",
        ),
        (
            Descriptor(
                3, "socket", "socket:[1]", socket=Socket("tcp", "ESTABLISHED", "a", "b", 1, 2, 3)
            ),
            None,
            "1 byte not read, 2 bytes written and not acknowledged, sent again 3 times",
        ),
        (
            Descriptor(3, "socket", "socket:[1]", socket=Socket("tcp", "LISTEN", "a", "b", 2)),
            None,
            "2 connections not accepted",
        ),
    ],
)
def test_the_state_of_a_descriptor_in_words(
    item: Descriptor, *, moves: bool | None, told: str
) -> None:
    assert state_of(item, moves=moves) == told
