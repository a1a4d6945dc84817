"""Members of a process group: which ranks they are, and how many have joined."""

from __future__ import annotations

from hangtop.views.members import Live
from support.record import load


def test_the_ranks_of_another_job_in_the_same_picture_are_taken() -> None:
    snapshot = load("skip").snapshot
    ranks = snapshot.jobs[0].ranks
    live = Live()
    live.take(snapshot, ranks)
    assert live.ranks[0] is ranks[0]
    live.take(snapshot, ranks[1:])
    assert sorted(live.ranks) == [rank.rank for rank in ranks[1:]]
    live.take(snapshot, ())
    assert not live.ranks
