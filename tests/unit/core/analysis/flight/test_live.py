"""The picture of running ranks: what it holds, and when it is worked out anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.flight.live import in_flight, picture
from hangtop_core.model import Recorder
from support.build import NOW, World, recorder

if TYPE_CHECKING:
    from hangtop_core.model import Rank


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
