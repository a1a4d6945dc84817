"""Where ranks that are missing should be, by their numbers and by what names the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.layout import seats
from hangtop_core.model.meters import Stalled
from hangtop_core.model.snapshot import Node
from support.build import judged
from support.halves import N1, N2, N3, culprits, halves, world
from support.situations import INIT, POLL, SLEEP, c10d
from support.verdicts import hung

if TYPE_CHECKING:
    from support import situations


def test_a_missing_rank_beside_others_has_its_place() -> None:
    made = world()
    halves(made, "n1", "n2")
    del made.ranks[3]
    verdict = hung(made, world_size=4)
    assert verdict.cause == "rank-exited"
    assert culprits(verdict) == [(3, "n2")]
    assert "rank 3 (local rank 1 of n2) has left" in verdict.summary
    assert len(judged(made, world_size=4).verdicts) == 1


def test_the_only_node_without_ranks_is_where_they_should_be() -> None:
    made = world(N1, N2, N3)
    halves(made, "n1", "n3", size=6)
    verdict = hung(made, world_size=6)
    assert (verdict.cause, culprits(verdict)) == ("rank-never-joined", [(2, "n2"), (3, "n2")])
    assert "ranks 2-3 (n2) never joined, and no such process is on n2" in verdict.summary
    # n2 was named; whether it is one of the job's nodes is not told by anything else.
    assert any("node rank 1 is n2, if the nodes" in one.text for one in verdict.evidence)
    assert verdict.confidence == 0.75
    sure = hung(made, world_size=6, hosts=("n1", "n2", "n3"))
    assert (sure.confidence, culprits(sure)) == (0.9, culprits(verdict))
    assert any(one.text.endswith("node rank 1 is n2") for one in sure.evidence)


def test_a_launcher_without_its_ranks_makes_its_node_sure() -> None:
    made = world(N1, N2, N3)
    halves(made, "n1", "n3", size=6)
    launcher = made.process(99, SLEEP, role="launcher", launcher="torchrun", node="n2")
    verdict = hung(made, world_size=6, launchers=(launcher,))
    assert (verdict.confidence, culprits(verdict)) == (0.9, [(2, "n2"), (3, "n2")])


def test_ranks_that_had_met_have_left_their_node() -> None:
    made = world(N1, N2, N3)
    halves(made, "n1", "n3", size=6, stack=c10d("all_reduce"))
    verdict = hung(made, world_size=6)
    assert (verdict.cause, culprits(verdict)) == ("rank-exited", [(2, "n2"), (3, "n2")])
    assert verdict.confidence == 0.6
    sure = hung(made, world_size=6, hosts=("n1", "n2", "n3"))
    assert (sure.cause, sure.confidence) == ("rank-exited", 0.8)


def test_slurm_names_the_node_even_if_nobody_observes_it() -> None:
    made = world(N1, N2)
    halves(made, "n1", "n2", size=6)
    found = judged(made, world_size=6, hosts=("n1", "n2", "n7"))
    assert not [one for one in found.verdicts if one.cause == "rank-never-joined"]
    spot = next(one for one in found.blind_spots if one.what == "ranks")
    assert (spot.ranks, spot.nodes) == ((4, 5), ("n7",))
    assert "not among the nodes that were named" in spot.why


def test_an_order_that_the_ranks_do_not_follow_names_nobody() -> None:
    # n3 has node rank 0, so neither Slurm's list nor the order of names tells who node rank 2 is.
    made = world(N1, N2, N3, Node("n4", "ready"))
    halves(made, "n1", "n3", size=8, first={"n3": 0, "n1": 2})
    snapshot = made.snapshot(world_size=8, hosts=("n1", "n2", "n3", "n4"))
    found = seats(snapshot, snapshot.jobs[0])
    assert [(s.rank, s.node, s.group, s.local) for s in found] == [
        (4, None, 2, 0),
        (5, None, 2, 1),
        (6, None, 3, 0),
        (7, None, 3, 1),
    ]
    assert found[0].among == ("n2", "n4")
    assert "(on n2 or n4)" in "".join(one.text for one in hung(made, world_size=8).evidence)


def test_uneven_nodes_tell_nothing() -> None:
    made = world()
    halves(made, "n1", size=5)
    for rank, local in ((2, "0"), (3, "1"), (4, "2")):
        env = {"RANK": str(rank), "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": "3"}
        made.add(INIT, POLL, rank=rank, node="n2", process={"env": env})
    del made.ranks[0]
    snapshot = made.snapshot(world_size=6)
    assert [(s.rank, s.node) for s in seats(snapshot, snapshot.jobs[0])] == [(0, "n1"), (5, None)]


@pytest.mark.parametrize("stack", [INIT, c10d("all_reduce")])
def test_ranks_of_a_node_that_cannot_be_reached_are_no_missing_ranks(
    stack: situations.Stack,
) -> None:
    made = world(N1, N2, Node("n3", "unreachable", reason="no route to host"))
    halves(made, "n1", "n2", size=6, stack=stack)
    verdict = hung(made, world_size=6)
    assert (verdict.cause, verdict.confidence) == ("node-unreachable", 0.5)
    assert culprits(verdict) == [(4, "n3"), (5, "n3")]
    assert "ranks 4-5 (n3) were not seen, for n3 cannot be reached" in verdict.summary


@pytest.mark.parametrize(
    ("remote", "times", "state", "confidence"),
    [
        ("10.0.0.3:51000", 7, "ESTABLISHED", 0.75),
        ("10.0.0.3:51000", 2, "ESTABLISHED", 0.5),  # a lossy moment
        ("10.0.0.3:51000", 7, "SYN_SENT", 0.5),  # a port that nobody has
        ("10.0.0.2:51000", 7, "ESTABLISHED", 0.5),  # a node that answers
    ],
)
def test_what_is_sent_to_a_node_that_never_answered_tells_that_it_is_away(
    remote: str, times: int, state: str, confidence: float
) -> None:
    # GIVEN a node that hangtop never got to, and a rank of another whose bytes nobody acknowledges
    made = world(N1, N2, Node("n3", "unreachable", reason="no route to host"))
    halves(made, "n1", size=6, stack=c10d("all_reduce"))
    tried = Stalled("10.0.0.2:40000", remote, 4096, times, state)
    halves(made, "n2", size=6, stack=c10d("all_reduce"), stalled=(tried,))
    # WHEN it is judged, THEN the kernel's word counts
    found = judged(made, world_size=6).verdicts
    (verdict,) = [one for one in found if one.cause == "node-unreachable"]
    assert (verdict.confidence, culprits(verdict)) == (confidence, [(4, "n3"), (5, "n3")])
    told = (
        "10.0.0.2:40000 -> 10.0.0.3:51000: 4096 bytes not acknowledged, sent again 7 times in a "
        "row; no node that answers has that address"
    )
    assert (told in [one.text for one in verdict.evidence]) == (confidence == 0.75)


def test_ranks_of_a_node_that_refuses_are_a_blind_spot_and_no_verdict() -> None:
    made = world(N1, N2, Node("n3", "denied", reason="login refused"))
    halves(made, "n1", "n2", size=6)
    found = judged(made, world_size=6)
    assert not [c for one in found.verdicts for c in one.culprits]
    spot = next(one for one in found.blind_spots if one.what == "ranks")
    assert (spot.ranks, spot.nodes) == ((4, 5), ("n3",))
    assert "denied: login refused" in spot.why
