"""The recorders of running ranks, read together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.analysis.flight.live import in_flight
from support.build import FUTEX, World, c10d, recorder

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.model import Recorder


def align(recorders: list[Recorder | None]) -> tuple[Operation, ...]:
    world = World()
    for one in recorders:
        world.add(c10d("all_reduce"), FUTEX, recorder=one)
    return in_flight(world.ranks)


def joined(*parts: Recorder) -> Recorder:
    """One recorder with the entries of several groups."""
    entries = tuple(entry for part in parts for entry in part.entries)
    return msgspec.structs.replace(parts[0], entries=entries)


def test_the_rank_that_lacks_the_pending_sequence_number_is_named() -> None:
    ahead, behind = recorder(["all_reduce"] * 17, 16), recorder(["all_reduce"] * 16, 16)
    (one,) = align([ahead, ahead, behind, ahead])
    assert (one.entry.name, one.missing, one.mismatched) == ("all_reduce #17", (2,), ())
    assert one.classes[0][1] == (0, 1, 3)
    assert one.label == "default_pg"


def test_different_operations_with_one_number_name_the_minority() -> None:
    most = recorder(["all_reduce"] * 7, 6)
    other = recorder(["all_reduce"] * 6 + ["broadcast"], 6)
    (one,) = align([most, other, most, most])
    assert (one.missing, one.mismatched) == ((), (1,))


def test_nothing_is_under_way_when_all_is_completed() -> None:
    done = recorder(["all_reduce"] * 4, 4)
    assert align([done, done]) == ()


def test_groups_that_lack_ranks_come_first() -> None:
    first = recorder(["all_reduce"] * 3, 2)
    tensor = recorder(["all_gather"] * 5, 4, group="1")
    behind = recorder(["all_gather"] * 4, 4, group="1")
    found = align([joined(first, tensor), joined(first, behind)])
    assert [(one.node.seq, one.missing) for one in found] == [(5, (1,)), (3, ())]


def test_ranks_that_issued_nothing_lack_what_the_default_group_waits_for() -> None:
    elsewhere = recorder(["barrier"], 1, group="3")
    (one,) = align([recorder(["all_reduce"], 0), elsewhere])
    assert one.missing == (1,)


def test_ranks_without_a_recorder_are_not_accused() -> None:
    (one,) = align([recorder(["all_reduce"] * 2, 1), None])
    assert one.missing == ()


def test_names_leave_out_the_backend() -> None:
    (one,) = align([recorder(["gloo:all_reduce"], 0)])
    assert one.entry.name == "all_reduce #1"
