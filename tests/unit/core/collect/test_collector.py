"""Many nodes at once: whose turn it is to connect, what waits for all, whom nobody is to blame."""

from __future__ import annotations

import pytest

from hangtop_core.attach.connect.timing import Timing
from hangtop_core.attach.ways import pdsh
from hangtop_core.errors import HangtopError, RequestTimeoutError
from hangtop_core.model.updates import Options
from hangtop_core.scheduling.arrivals import PAUSE_NODE_S
from support.crowd import Crowd

TABLE = {"id": 1, "seq": 0, "data": {"at": 5.0, "whole": True}}
"""What a node says first of all it runs: nothing."""


def test_the_next_one_logs_in_as_soon_as_another_has() -> None:
    crowd = Crowd(nodes=100, at_once=8)
    assert len(crowd.engine.opened) == 8
    for count in range(1, 93):
        crowd.hello(count)  # nobody waits for the next look at all of them
        assert len(crowd.engine.opened) == 8 + count
    crowd.collector.close(crowd.now)
    crowd.collector.tick(crowd.now)
    assert len(crowd.engine.opened) == 100


def test_who_waits_its_turn_does_not_start_any_more_once_all_is_closed() -> None:
    crowd = Crowd(nodes=10, at_once=2)
    assert crowd.collector.arrivals.pending(crowd.mono)
    crowd.collector.close(crowd.now)
    assert not crowd.collector.arrivals.pending(crowd.mono), "what ends is told at once"
    crowd.hello(1)
    crowd.mono += 1.0
    crowd.collector.tick(crowd.now)
    assert len(crowd.engine.opened) == 2


def test_no_node_is_blamed_for_the_time_in_which_nobody_listened() -> None:
    """As on a machine that was suspended, or has far too much to do."""
    crowd = Crowd(nodes=3, at_once=3)
    crowd.collector.tick(crowd.now)
    for conn in crowd.engine.opened:
        crowd.hello(conn)
    for _ in range(4):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now)
    assert [message["op"] for message in crowd.engine.sent].count("ping") == 3
    crowd.mono += 300.0
    crowd.collector.tick(crowd.now)
    assert crowd.states() == ["ready"] * 3
    for _ in range(80):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now)
    assert set(crowd.states()) == {"lost"}, "and what they did not say then counts"


def test_no_node_is_blamed_while_what_it_has_said_waits_to_be_read() -> None:
    crowd = Crowd(nodes=3, at_once=3)
    for conn in crowd.engine.opened:
        crowd.hello(conn)
    for _ in range(400):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now, behind=True)
    assert crowd.states() == ["ready"] * 3
    for _ in range(80):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now)
    assert set(crowd.states()) == {"lost"}


def asked(crowd: Crowd) -> list[str]:
    return [message["op"] for message in crowd.engine.sent if message["op"] != "ping"]


def a_rank(pid: int) -> dict[str, object]:
    own = {"pid": pid, "rank_pid": pid, "ppid": 1, "start": 7, "started_at": 1.0, "state": "S"}
    return {**own, "role": "rank", "label": "rank 0", "rank": 0, "env": {"RANK": "0"}}


def test_stacks_wait_for_all_nodes_and_for_none_that_does_not_come() -> None:
    crowd = Crowd(nodes=100, at_once=100, options=Options())
    collector = crowd.collector
    with_rank = {**TABLE, "data": {**TABLE["data"], "set": {"8": a_rank(8)}}}  # type: ignore[dict-item]
    for conn in crowd.engine.opened[:-1]:
        crowd.hello(conn)
        crowd.say(conn, with_rank)
        crowd.mono += PAUSE_NODE_S
        collector.tick(crowd.now)
    assert asked(crowd) == ["watch"] * 99, "one is still to come"
    assert not collector.arrivals.over
    assert collector.is_new(crowd.engine.opened[-1])
    assert not collector.is_new(crowd.engine.opened[0])
    assert collector.is_new(1000), "one child for many nodes"
    crowd.mono += 100 * PAUSE_NODE_S
    collector.tick(crowd.now)
    assert asked(crowd).count("stacks") == 99, "nobody waits for it for ever"
    crowd.hello(crowd.engine.opened[-1])
    assert not collector.arrivals.over, "that it answers does not tell what it runs"
    crowd.say(crowd.engine.opened[-1], TABLE)
    assert collector.arrivals.over, "and now a picture of all is due"


def test_the_picture_of_all_is_shown_before_stacks_are_asked_for() -> None:
    crowd = Crowd(nodes=100, at_once=100, options=Options())
    collector = crowd.collector
    with_rank = {**TABLE, "data": {**TABLE["data"], "set": {"8": a_rank(8)}}}  # type: ignore[dict-item]
    for conn in crowd.engine.opened:
        crowd.hello(conn)
        crowd.say(conn, with_rank)
    assert collector.arrivals.over
    crowd.mono += 100 * PAUSE_NODE_S
    collector.tick(crowd.now)
    assert "stacks" not in asked(crowd), "it is not yet made"
    collector.arrivals.shown(crowd.mono)  # as the session does that makes it
    assert not collector.arrivals.over
    collector.tick(crowd.now)
    assert "stacks" not in asked(crowd), "it is being drawn"
    crowd.mono += 100 * PAUSE_NODE_S
    collector.tick(crowd.now)
    assert asked(crowd).count("stacks") == 100


def test_a_node_that_cannot_tell_is_not_waited_for() -> None:
    crowd = Crowd(nodes=2, at_once=2, options=Options())
    first, second = crowd.engine.opened
    crowd.hello(first)
    crowd.say(first, TABLE)
    crowd.say(second, {"id": 0, "hello": {"protocol": 99}})
    assert crowd.states() == ["ready", "incompatible"]
    assert crowd.collector.arrivals.over


def test_logs_of_two_jobs_of_a_node_are_read_one_after_the_other() -> None:
    crowd = Crowd(nodes=1, at_once=1)
    crowd.hello(1)
    (link,) = crowd.collector.links.values()
    for pid in (11, 22):
        crowd.collector.read_log(link, crowd.collector.asks.log(link.name, (pid,)))
    asked = [message for message in crowd.engine.sent if message["op"] == "log"]
    assert [message["pids"] for message in asked] == [[11]]
    crowd.say(1, {"id": asked[0]["id"], "end": {"files": 0}})
    asked = [message for message in crowd.engine.sent if message["op"] == "log"]
    assert [message["pids"] for message in asked] == [[11], [22]]


@pytest.mark.parametrize(("timing", "limit"), [(Timing(), 20.0), (pdsh.TIMING, 60.0)])
def test_a_request_that_is_a_login_of_its_own_has_time_for_that(
    timing: Timing, limit: float
) -> None:
    """Else none is ever answered on a machine on which logging in takes longer than its answer."""
    crowd = Crowd(nodes=1, at_once=1, timing=timing)
    crowd.hello(1)
    ended: list[HangtopError | None] = []
    link, stacks = crowd.collector.links["n0"], crowd.collector.asks.stacks([7])
    crowd.collector.ask(link, stacks, ended.append)
    took = 0.0
    while not ended and took < 100.0:
        took += 0.5
        crowd.mono += 0.5
        crowd.say(1, {"id": 9, "end": {}})  # it is there, but has other things to do
        crowd.collector.tick(crowd.now)
    assert [type(one) for one in ended] == [RequestTimeoutError]
    assert limit - 10.0 < took < limit
