"""The picture of running ranks: what it holds, and when it is worked out anew."""

from __future__ import annotations

from dataclasses import dataclass

from hangtop_core.analysis.flight.live import in_flight, picture
from hangtop_core.model import Recorder
from support.build import NOW, recorder
from support.build import World as Job


@dataclass
class Ranks:
    said: list[Recorder | None]

    def make(self):
        job = Job()
        for one in self.said:
            job.add(None, None, recorder=one)
        return job.snapshot().jobs[0].ranks


def test_shows_what_the_recorders_say_and_who_said_nothing():
    ops = ["gloo:all_reduce"] * 3
    ranks = Ranks([recorder(ops, 2), recorder(ops, 2), recorder(ops[:2], 2), None]).make()
    seen = picture(ranks)
    assert seen is not None
    assert seen.world.absent == (3,)
    [one] = in_flight(seen)
    assert (one.entry.name, one.missing, one.absent) == ("all_reduce #3", (2,), (3,))


def test_is_the_same_until_a_recorder_says_something_new():
    said = [recorder(["gloo:all_reduce"], 0), recorder([], 0)]
    first = picture(Ranks(said).make())
    assert first is picture(Ranks(said).make())
    assert first is not picture(Ranks([*said[:1], recorder(["gloo:all_reduce"], 0)]).make())


def test_is_nothing_where_no_recorder_was_read():
    assert picture(Ranks([None, Recorder(at=NOW)]).make()) is None
