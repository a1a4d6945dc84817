"""What does not get through between nodes is named by the nodes that have it in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.meters import Stalled
from hangtop_core.model import Node
from support.build import HUNG_SINCE, World, judged
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
    assert verdict.summary.startswith("TCP between n1 and n2 does not get through: what rank 2")
    assert "sent again 9 times in a row" in verdict.summary
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
