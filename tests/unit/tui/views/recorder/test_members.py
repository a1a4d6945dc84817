"""Members of a process group: which ranks they are, and how many have joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop.terminal.spans import plain
from hangtop.views.recorder.members import Live, MemberRow, members_title
from hangtop_core.analysis.flight.members import Attendee
from support.record import load

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.members import Attendance


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


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (("joined", "over"), "all 2 joined"),
        (("not", "joined"), "1 of 2 not joined"),
        (("unsure", "absent"), "2 not known"),
        (("joined", "unsure", "absent"), "1 of 3 joined, 2 not known"),
        (("joined", "joined", "differs"), "2 of 3 joined, 1 with another call"),
        (("joined", "unreadable"), "1 of 2 joined, 1 not known"),
        (("differs", "unsure"), "1 with another call, 1 not known"),
        (("not", "differs", "unsure"), "1 of 3 not joined, 1 with another call, 1 not known"),
    ],
)
def test_only_who_has_joined_is_counted_as_joined(
    members: tuple[Attendance, ...], told: str
) -> None:
    live = Live()
    rows = [MemberRow(Attendee(rank, how, None), 0, live) for rank, how in enumerate(members)]
    assert plain(members_title("all_reduce #3", rows)[1]) == told
