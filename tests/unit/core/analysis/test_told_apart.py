"""Errors that do not follow from each other, and ranks beside which all others have left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import Descriptor, DescriptorTable, Socket
from hangtop_core.model.output import Output
from hangtop_core.session.observing import decided
from support import build, situations
from support.build import World
from support.logs import parsed
from support.situations import RECVFROM, SLEEP
from support.verdicts import first

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis

TRACEBACK = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/job/train.py", line {line}, in step\n[rank{rank}]:     x()\n'
    "[rank{rank}]: {error}\n"
)
CLOSED = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:60572."
)
GAVE_UP = "RuntimeError: [x.cc:78] Timed out waiting 8000ms for recv operation to complete"


def raised(rank: int, error: str, line: int = 4) -> str:
    return TRACEBACK.format(rank=rank, error=error, line=line)


def judged(world: World, text: str, world_size: int | None = None) -> Diagnosis:
    pids = tuple(rank.process.pid for rank in world.ranks)
    output = Output("n1", "1:1", "/job/log.txt", pids=pids, log=parsed(text))
    snapshot = world.snapshot(world_size=world_size or len(world.ranks))
    snapshot = msgspec.structs.replace(snapshot, outputs=(output,))
    return diagnose(snapshot, snapshot.job(None))


def ended(codes: tuple[int | None, ...], text: str) -> Diagnosis:
    """A job of which all ranks have left within a moment, with these exit statuses."""
    world = World()
    for code in codes:
        gone = {"state": "X", "gone_at": build.NOW - 12.0, "exit_code": code}
        world.add(None, None, state="exited", process=gone)
    return judged(world, text)


def test_an_error_of_its_own_beside_a_crash_is_told_apart() -> None:
    found = ended((None, -11, None, 1), raised(3, "KeyError: 'a'") + raised(0, CLOSED, 9))
    assert [(v.cause, [c.rank for c in v.culprits], v.apart) for v in found.verdicts] == [
        ("rank-crashed", [1], False),
        ("rank-exited", [3], True),
    ]
    assert found.verdicts[1].confidence < found.verdicts[0].confidence
    assert "both have to be looked at" in found.verdicts[1].weaker


def test_two_errors_of_two_ranks_are_told_apart_and_equal_ones_are_not() -> None:
    lost = raised(0, CLOSED, 9)
    found = ended((1, 1, 1, 1), raised(1, "KeyError: 'a'") + raised(3, "ValueError: b", 7) + lost)
    assert [[c.rank for c in v.culprits] for v in found.verdicts] == [[1], [3]]
    assert "KeyError" in found.verdicts[0].summary
    assert "ValueError" in found.verdicts[1].summary
    assert found.verdicts[1].apart
    equal = ended((1, 1, 1, 1), raised(1, "KeyError: 'a'") + raised(3, "KeyError: 'a'") + lost)
    assert len(equal.verdicts) == 1


@pytest.mark.parametrize(("code", "error"), [(-15, "KeyError: 'a'"), (1, CLOSED), (1, GAVE_UP)])
def test_who_was_told_to_end_or_lost_the_other_is_not_told_apart(code: int, error: str) -> None:
    found = ended((1, -11, 1, code), raised(3, error) + raised(0, CLOSED, 9) + raised(2, CLOSED, 9))
    assert [v.cause for v in found.verdicts] == ["rank-crashed"]


def test_a_rank_left_some_seconds_ago_and_has_not_left_ago() -> None:
    found = ended((None, None, None), raised(1, "KeyError: 'a'") + raised(0, CLOSED, 9))
    assert " exited 12 s ago with KeyError" in found.verdicts[0].summary


def alone(text: str) -> Diagnosis:
    """Rank 1 of four works, and the others are not there any more."""
    world = World()
    world.ranks = []
    world.add(situations.user("spin", 8), ("R", "0", None, None, None), moved_at=build.NOW)
    world.ranks = [msgspec.structs.replace(world.ranks[0], rank=1)]
    return judged(world, text, 4)


@pytest.mark.parametrize(
    ("said", "since", "printed", "state"),
    [
        (True, 40.0, None, "hung"),
        # It may get on, or not be one that others have waited for.
        (True, 20.0, None, "progressing"),
        (True, 40.0, build.NOW - 5.0, "progressing"),
        (False, 40.0, None, "progressing"),
    ],
)
def test_who_is_left_in_a_while_after_all_others_have_given_up_hangs(
    *, said: bool, since: float, printed: float | None, state: str
) -> None:
    world = World()
    spins = msgspec.structs.replace(
        situations.user("spin", 8)[0], within=((7, "while not self.done:"),), line=8
    )
    stack = (spins, *situations.BASE)
    facts = ("R", "0", None, None, None)
    one = world.add(stack, facts, moved_at=build.NOW, printed_at=printed)
    assert one.sample is not None
    loops = ((spins.file, spins.name, 7, build.NOW - since),)
    sample = msgspec.structs.replace(one.sample, loops=loops)
    world.ranks = [msgspec.structs.replace(one, rank=1, sample=sample)]
    text = "".join(raised(rank, GAVE_UP if said else "KeyError: 'a'") for rank in (0, 2, 3))
    found = judged(world, text, 4)
    assert found.state == state
    assert decided(found, 6.0) == (state == "hung" or not said)
    if said:
        assert first(found) == ("missing-collective", [1])


def test_at_work_alone_after_all_others_have_given_up_waiting_is_who_they_waited_for() -> None:
    found = alone("".join(raised(rank, GAVE_UP) for rank in (0, 2, 3)))
    assert found.state == "progressing"
    assert first(found) == ("missing-collective", [1])
    assert "did not come where ranks 0,2-3 waited" in found.verdicts[0].summary
    assert "left; now it is busy at" in found.verdicts[0].summary


def test_of_each_that_gave_up_its_own_line_is_told() -> None:
    found = alone(raised(0, GAVE_UP, 7) + raised(2, GAVE_UP, 8) + raised(3, GAVE_UP, 9))
    told = {e.rank: e.text for e in found.verdicts[0].evidence if e.source == "log"}
    assert all(f":{line} (" in told[rank] for rank, line in ((0, 7), (2, 8), (3, 9)))


@pytest.mark.parametrize("text", ["", raised(0, "KeyError: 'a'"), raised(1, GAVE_UP)])
def test_at_work_alone_tells_nothing_where_nobody_has_waited_for_it(text: str) -> None:
    assert not [v for v in alone(text).verdicts if v.cause == "missing-collective"]


def test_where_all_sleep_at_one_place_and_nobody_waits_that_is_told() -> None:
    world = World()
    for _ in range(3):
        world.add(situations.user("load", 8), SLEEP)
    found = judged(world, "")
    assert found.state == "unknown"
    assert first(found) == ("unknown", [])
    assert "no rank waits for another" in found.verdicts[0].summary
    assert "ranks 0-2 sleep at" in found.verdicts[0].summary
    assert "nothing differs between them" in found.verdicts[0].summary


def test_what_waits_at_a_listening_socket_are_connections_and_no_bytes() -> None:
    world = World()
    world.waiters(2)
    listens = Socket("tcp", "LISTEN", "127.0.0.1:40683", "0.0.0.0:0", recv_queue=1)
    peer = Socket("tcp", "ESTABLISHED", "127.0.0.1:53350", "127.0.0.1:40683")
    table = DescriptorTable(
        build.NOW,
        (
            Descriptor(10, "socket", "socket:[1]", socket=listens),
            Descriptor(17, "socket", "socket:[2]", socket=peer),
        ),
    )
    world.add(situations.user("ask", 8), RECVFROM, descriptors=table)
    told = [one.text for one in judged(world, "").verdicts[0].evidence if "LISTEN" in one.text]
    assert told
    assert told[0].endswith("LISTEN: 1 connection that nobody has accepted")
