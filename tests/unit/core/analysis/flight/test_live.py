"""The picture of running ranks: what it holds, and when it is worked out anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.flight.live import in_flight, picture
from hangtop_core.analysis.flight.members import attendees
from hangtop_core.model.descriptors import Failure
from hangtop_core.model.recorder.recorder import RecorderWay
from hangtop_core.model.snapshot import Recorder
from support.build import NOW, World, recorder

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank


def ranks(*said: Recorder | None) -> tuple[Rank, ...]:
    world = World()
    for one in said:
        world.add(None, None, recorder=one)
    return world.snapshot().jobs[0].ranks


def test_shows_what_the_recorders_say_and_who_said_nothing() -> None:
    ops = ["gloo:all_reduce"] * 3
    seen = picture(ranks(recorder(ops, 2), recorder(ops, 2), recorder(ops[:2], 2), None))
    assert seen is not None
    assert seen.world.absent == (3,)
    [one] = in_flight(seen)
    assert (one.entry.name, one.missing, one.absent) == ("all_reduce #3", (2,), (3,))


def test_is_the_same_until_a_recorder_says_something_new() -> None:
    said = [recorder(["gloo:all_reduce"], 0), recorder([], 0)]
    first = picture(ranks(*said))
    assert first is picture(ranks(*said))
    assert first is not picture(ranks(said[0], recorder(["gloo:all_reduce"], 0)))


def test_is_nothing_where_no_recorder_was_read() -> None:
    assert picture(ranks(None, Recorder(at=NOW))) is None


@pytest.mark.parametrize("code", ["truncated", "refused", "owner", "broke"])
def test_a_recorder_that_could_not_be_read_is_no_missing_one(code: str) -> None:
    ops = ["gloo:all_reduce"] * 3
    way = RecorderWay("file", code, {"path": "/run/rank_3", "why": "it is odd"})
    spoiled = Recorder(at=NOW, ways=(way,), failure=Failure("missing", "no way to it"))
    seen = picture(ranks(*[recorder(ops, 2)] * 3, spoiled))
    assert seen is not None
    assert (seen.world.absent, seen.world.unreadable) == ((3,), (3,))
    assert seen.diagnosis.verdicts == ()
    [who] = [one for one in attendees(seen.world, 0, 3, in_flight(seen)[0]) if one.rank == 3]
    assert who.how == "unreadable"
    lost = picture(ranks(*[recorder(ops, 2)] * 3, Recorder(at=NOW)))
    assert lost is not None
    assert [c.rank for c in lost.diagnosis.verdicts[0].culprits] == [3]
