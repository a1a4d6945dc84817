"""What does not get through between nodes is named by the nodes that have it in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.meters import Stalled
from hangtop_core.model.snapshot import DescriptorTable, Node
from support.build import HUNG_SINCE, NOW, World, judged
from support.situations import FUTEX, SLEEP, c10d, user
from support.verdicts import blamed

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

ADDRESS = "10.0.0.{}"


def stalled(to: int, retransmits: int = 8, host: str | None = None) -> Stalled:
    return Stalled("10.0.0.9:40000", f"{host or ADDRESS.format(to)}:51000", 4096, retransmits)


def first(
    connections: dict[int, list[Stalled]], *, late: int | None = None, away: int | None = None
) -> Verdict:
    """Diagnose four ranks, each on a node of its own, with their stalled connections."""
    world = World()
    for number in range(4):
        told = {"stalled": tuple(connections.get(number, ()))}
        doing = (user("rest", 41), SLEEP) if number == late else (c10d("all_reduce"), FUTEX)
        world.add(*doing, node=f"n{number}", process=told)
        state, seen = ("lost", HUNG_SINCE) if number == away else ("ready", world.at)
        world.nodes[f"n{number}"] = Node(
            f"n{number}", state, addresses=(ADDRESS.format(number),), last_seen=seen
        )
    return judged(world).verdicts[0]


def test_of_two_nodes_both_ends_are_named() -> None:
    verdict = first({1: [stalled(2)], 2: [stalled(1, 9)]})
    assert (verdict.cause, blamed(verdict), verdict.victims) == ("tcp-peer-dead", [1, 2], (0, 3))
    assert verdict.summary.startswith("TCP between n1 and n2 does not get through: what ranks 1-2")
    assert "sent again up to 9 times in a row" in verdict.summary
    (one, *_) = (e for e in verdict.evidence if e.source == "network")
    assert one.text == (
        "10.0.0.9:40000 -> 10.0.0.1:51000 on n1: 4096 bytes not acknowledged, sent again 9 times "
        "in a row"
    )
    assert any("ping -c3 -W2 10.0.0.1" in step for step in verdict.next_steps)
    assert verdict.confidence == 0.9


def test_the_node_that_all_have_in_common_is_named_also_when_it_sends_nothing() -> None:
    verdict = first({0: [stalled(3)], 1: [stalled(3)], 2: [stalled(3)]})
    assert (verdict.cause, blamed(verdict), verdict.victims) == ("tcp-peer-dead", [3], (0, 1, 2))
    assert "2 more pairs of nodes, all of them with n3" in verdict.summary


@pytest.mark.parametrize(
    "connection",
    [
        stalled(2, 3),  # a lossy moment
        stalled(2, host="192.0.2.1"),  # no node of the job: a service
        stalled(1),  # within the node
    ],
)
def test_what_is_no_broken_way_between_nodes(connection: Stalled) -> None:
    assert first({1: [connection]}).cause == "unknown"


def test_a_node_that_has_gone_away_is_told_as_that() -> None:
    verdict = first({1: [stalled(2)]}, away=2)
    assert (verdict.cause, blamed(verdict)) == ("node-unreachable", [2])


def test_it_comes_before_a_rank_outside_communication_that_others_wait_for() -> None:
    verdict = first({1: [stalled(2)]}, late=3)
    assert (verdict.cause, blamed(verdict)) == ("tcp-peer-dead", [1])


STORE = "10.0.0.1:29500"


def two(ends: dict[int, tuple[str, str]], open_: tuple[str, str]) -> Verdict:
    """Ranks 0 and 1 on n1 and n2 with stuck connections, and one more of rank 1 that is open."""
    world = World()
    socket = Socket("tcp", "ESTABLISHED", *open_)
    table = DescriptorTable(NOW, (Descriptor(9, "socket", "socket:[1]", socket=socket),))
    for number in range(2):
        stuck = (Stalled(*ends[number], 48, 6),) if number in ends else ()
        name = f"n{number + 1}"
        process = {"stalled": stuck}
        more = {"descriptors": table} if number else {}
        world.add(c10d("all_reduce"), FUTEX, node=name, process=process, **more)
        addresses = (f"10.0.0.{number + 1}", f"10.9.0.{number + 1}")
        world.nodes[name] = Node(name, "ready", addresses=addresses, last_seen=NOW)
    return judged(world).verdicts[0]


def test_only_the_connections_to_the_store_are_told_where_only_these_are_stuck() -> None:
    ends = {0: (STORE, "10.0.0.2:4000"), 1: ("10.0.0.2:4000", STORE)}
    verdict = two(ends, ("10.0.0.2:4001", "10.0.0.1:4002"))
    assert verdict.cause == "tcp-peer-dead"
    assert verdict.summary.startswith(
        "What goes to and from the store at 10.0.0.1:29500 by TCP between n1 and n2 does not get "
        "through: what ranks 0-1 send is not acknowledged, and was sent again 6 times in a row; "
        "1 other connection of these ranks between them is not stuck. The nodes answer hangtop"
    )
    assert "ranks 0-1 wait in all_reduce" in verdict.summary


def test_which_network_it_is_is_told_where_connections_on_another_one_are_not_stuck() -> None:
    ends = {0: ("10.9.0.1:4000", "10.9.0.2:4001"), 1: ("10.9.0.2:4001", "10.9.0.1:4000")}
    summary = two(ends, ("10.0.0.2:4001", "10.0.0.1:29500")).summary
    told = "TCP over 10.9.0.1 and 10.9.0.2 between n1 and n2 does not get through"
    assert summary.startswith(told)
    assert (
        "1 other connection of these ranks between them, over 10.0.0.1 and 10.0.0.2, is not stuck"
        in summary
    )


def within(*ends: tuple[int, int, bool], late: int | None = None, known: bool = True) -> Verdict:
    """Four ranks on one node; of stuck connections their two ranks, and if both ends send."""
    world, stuck = World(), {number: list[Stalled]() for number in range(4)}
    tables = {number: list[Descriptor]() for number in range(4)}
    for at, (here, there, both) in enumerate(ends):
        one, other = f"127.0.0.1:{40000 + at}", f"127.0.0.1:{50000 + at}"
        stuck[here].append(Stalled(one, other, 96, 7))
        if both:
            stuck[there].append(Stalled(other, one, 65824, 6))
        elif known:
            socket = Socket("tcp", "ESTABLISHED", other, one)
            tables[there].append(Descriptor(9 + at, "socket", f"socket:[{at}]", socket=socket))
    for number in range(4):
        doing = (user("rest", 41), SLEEP) if number == late else (c10d("all_reduce"), FUTEX)
        table = DescriptorTable(NOW, tuple(tables[number]))
        world.add(*doing, process={"stalled": tuple(stuck[number])}, descriptors=table)
    return judged(world).verdicts[0]


def test_within_a_node_the_rank_is_named_that_all_stuck_connections_have_in_common() -> None:
    verdict = within((0, 1, True), (1, 2, True), (3, 1, False))
    assert (verdict.cause, blamed(verdict), verdict.victims) == ("tcp-peer-dead", [1], (0, 2, 3))
    assert verdict.summary.startswith("TCP between rank 1 and ranks 0,2-3 on n1 does not get")
    assert "rank 1 is at one end of all 3 connections" in verdict.summary
    texts = [e.text for e in verdict.evidence if e.source == "network"]
    assert texts[0] == (
        "127.0.0.1:40000 -> 127.0.0.1:50000 of rank 1: 96 bytes not acknowledged, sent again 7 "
        "times in a row"
    )


def test_of_two_ranks_of_a_node_it_may_be_either() -> None:
    verdict = within((0, 1, True))
    assert (verdict.cause, blamed(verdict)) == ("tcp-peer-dead", [0, 1])
    assert "what ranks 0-1 send is not acknowledged" in verdict.summary
    assert "on 1 connection: that does not tell which of the two it is." in verdict.summary


def test_within_a_node_both_ranks_have_to_be_known_and_to_wait() -> None:
    assert within((0, 1, False), known=False).cause == "unknown"
    assert within((0, 1, True), late=1).cause != "tcp-peer-dead"
