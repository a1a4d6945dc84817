"""Ranks that have left or never came, and nodes that are lost: these come first."""

from __future__ import annotations

import pytest

from hangtop_core.model.snapshot import Node
from support.build import HUNG_SINCE, NOW, World, judged
from support.situations import INIT, POLL, RECVFROM, RENDEZVOUS, RUN, SLEEP, frame, user
from support.verdicts import blamed, hung

NEW_GROUP = (frame("new_group", "torch/distributed/distributed_c10d.py", 5100),)


def test_a_rank_that_left_while_others_wait_in_the_store() -> None:
    # GIVEN three ranks on one line, receiving from the store, and one process that has ended
    world = World()
    line = user("collect_results", 48, "store.wait(keys)")
    world.waiters(2, line, RECVFROM)
    ended = {"gone_at": NOW - 60, "exit_code": 0, "outputs": ("/logs/2/out.log", "/logs/2/err.log")}
    world.add(None, None, state="exited", process=ended)
    world.waiters(1, line, RECVFROM)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("rank-exited", [2])
    assert "status 0" in verdict.summary
    assert verdict.next_steps[0] == "tail -n 50 /logs/2/err.log"


def test_of_a_log_that_ranks_share_the_first_error_is_looked_for_before_its_end() -> None:
    world = World()
    outputs = ("/logs/all.log", "/logs/all.log")
    for _ in range(2):
        world.add(INIT, RECVFROM, process={"outputs": outputs})
    ended = {"gone_at": NOW - 60, "exit_code": 1, "outputs": outputs}
    world.add(None, None, state="exited", process=ended)
    first, second, *_ = hung(world).next_steps
    assert first.startswith("see the first error in the log that ranks share")
    assert first.endswith("grep -n -m 1 -A 30 Traceback /logs/all.log")
    assert second == "tail -n 50 /logs/all.log"


def test_a_rank_that_left_before_we_came() -> None:
    # GIVEN three ranks whose launcher started four on this node
    world = World()
    line = user("collect_results", 48)
    for rank in (0, 1, 3):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "4"}
        world.add(line, RECVFROM, rank=rank, process={"env": env})
    verdict = hung(world, world_size=4)
    assert (verdict.cause, blamed(verdict)) == ("rank-exited", [2])
    assert verdict.culprits[0].pid is None


@pytest.mark.parametrize(
    ("address", "cause"), [("127.0.0.1", "rank-exited"), ("n1", "subset-new-group")]
)
def test_a_rank_that_is_not_there_any_more_where_all_are_of_one_machine(
    address: str, cause: str
) -> None:
    # GIVEN ranks of a script of their own, which tells no local size, and of which one lacks
    world = World()
    for rank in (0, 1, 3):
        env = {"RANK": str(rank), "MASTER_ADDR": address, "MASTER_PORT": "29500"}
        line = user("make_groups", 12 + (rank == 0))
        world.add((*NEW_GROUP, *line), POLL, rank=rank, process={"env": env})
    # THEN that explains why they are in different groups; elsewhere it may be on another node
    verdict = hung(world, world_size=4)
    assert verdict.cause == cause
    if cause == "rank-exited":
        assert blamed(verdict) == [2]
        assert "rank 2 (n1) has left: no such process on n1" in verdict.summary
        assert "have met at 127.0.0.1" in verdict.evidence[0].text


def test_a_rank_whose_number_another_one_has_taken_has_not_left() -> None:
    # GIVEN a launcher that started three processes, two of them as rank 1
    world = World()
    for rank, local in ((0, "0"), (1, "1"), (1, "2")):
        env = {"RANK": str(rank), "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": "3"}
        world.add(INIT, POLL, rank=rank, process={"env": env})
    verdict = hung(world, world_size=3)
    assert verdict.cause == "launch-misconfigured"
    assert set(blamed(verdict)) == {1}


def test_ranks_that_never_came() -> None:
    world = World()
    world.waiters(4, INIT, POLL)
    verdict = hung(world, world_size=5)
    assert (verdict.cause, blamed(verdict)) == ("rank-never-joined", [4])
    assert "WORLD_SIZE is 5" in verdict.summary
    assert len(judged(world, world_size=5).verdicts) == 1


def test_a_rank_that_has_not_reached_init() -> None:
    world = World()
    world.waiters(3, INIT, POLL)
    world.add(user("prepare", 5), SLEEP)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("rank-never-joined", [3])
    assert "it sleeps at train.py:5 (prepare)" in verdict.summary


def test_who_has_not_reached_init_and_sleeps_by_turns_does_not_sleep_for_long() -> None:
    world = World()
    world.waiters(3, INIT, POLL)
    world.add(user("batches", 5), SLEEP, moved_at=NOW - 0.4)
    said = hung(world).summary
    assert "it sleeps again and again at train.py:5 (batches)" in said


def test_torchrun_without_ranks_waits_for_nodes() -> None:
    world = World()
    launcher = world.process(
        3000,
        SLEEP,
        role="launcher",
        launcher="torchrun",
        cmdline=("torchrun", "--nnodes=2", "--rdzv-endpoint", "n1:29400", "train.py"),
    )
    samples = {":3000": world.sample(RENDEZVOUS, pid=3000)}
    verdict = hung(
        world, launchers=(launcher,), launcher_samples=samples, world_size=None, nodes=("n1",)
    )
    assert verdict.cause == "rendezvous-incomplete"
    assert "n1:29400 for 2 nodes, of which 1 is seen here" in verdict.summary
    assert "bash -c '</dev/tcp/n1/29400'" in verdict.next_steps[1]


def test_torchrun_that_does_not_get_to_its_own_store_waits_for_no_other_node() -> None:
    """As on a machine whose own name is not in /etc/hosts."""
    world = World()
    command = ("torchrun", "--nproc-per-node=2", "train.py")
    launcher = world.process(
        3000, SLEEP, role="launcher", launcher="torchrun", cmdline=command, node="n1"
    )
    own = frame(
        "DynamicRendezvousHandler._create_tcp_store_server",
        "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        1127,
    )
    samples = {"n1:3000": world.sample((own, *RENDEZVOUS), pid=3000)}
    verdict = hung(
        world, launchers=(launcher,), launcher_samples=samples, world_size=None, nodes=("n1",)
    )
    assert verdict.cause == "rendezvous-incomplete"
    assert "the store that it has opened itself" in verdict.summary
    assert "other nodes" not in verdict.summary
    assert 'getent hosts "$(hostname -f)"' in verdict.next_steps[0]


@pytest.mark.parametrize("endpoint", ["127.0.0.1:0", "localhost:29400", "n1", "n1:0"])
def test_no_endpoint_is_to_be_tried_that_nobody_can_reach(endpoint: str) -> None:
    world = World()
    launcher = world.process(
        3000,
        SLEEP,
        role="launcher",
        launcher="torchrun",
        cmdline=("torchrun", "--nnodes=2", f"--rdzv-endpoint={endpoint}", "train.py"),
    )
    samples = {":3000": world.sample(RENDEZVOUS, pid=3000)}
    steps = hung(
        world, launchers=(launcher,), launcher_samples=samples, world_size=None, nodes=("n1",)
    ).next_steps
    assert not any("/dev/tcp" in step for step in steps)
    loopback = endpoint.startswith(("127.", "localhost"))
    assert any("no other node can reach" in step for step in steps) == loopback


def lost_node(seen: float) -> World:
    """Ranks 2 and 3 were on a node that does not answer any more."""
    world = World()
    world.waiters(2)
    world.waiters(2, node="n2")
    world.nodes["n2"] = Node("n2", "lost", reason="no answer for 15 s", last_seen=seen)
    return world


def test_a_node_that_goes_away_takes_the_job_with_it() -> None:
    verdict = hung(lost_node(HUNG_SINCE + 3))
    assert (verdict.cause, blamed(verdict)) == ("node-unreachable", [2, 3])
    assert verdict.victims == (0, 1)
    assert "n2 with ranks 2-3 is lost: no answer for 15 s" in verdict.summary
    assert "; ranks 0-1 wait in all_reduce" in verdict.summary, "those to blame do not wait"
    waits = [one.text for one in verdict.evidence if one.source == "stacks"]
    assert [text.partition(" in ")[0] for text in waits] == ["ranks 0-1 wait", "ranks 2-3 waited"]
    assert "when last seen, " in waits[1]


def test_of_two_lost_nodes_neither_waits_for_the_other() -> None:
    world = lost_node(HUNG_SINCE + 3)
    world.waiters(2, node="n3")
    reason = "its connection broke; connecting again in 3 s"
    world.nodes["n3"] = Node("n3", "lost", reason=reason, last_seen=HUNG_SINCE + 3)
    verdicts = [one for one in judged(world).verdicts if one.cause == "node-unreachable"]
    assert [one.victims for one in verdicts] == [(0, 1), (0, 1)]
    assert all("; ranks 0-1 wait in" in one.summary for one in verdicts)
    assert "connecting again" not in repr(verdicts), "a verdict does not change with each second"


def test_who_is_still_outside_init_is_not_blamed_before_a_lost_node() -> None:
    world = World()
    world.add(INIT, POLL)
    world.add(user(12, "read_config"), SLEEP)
    world.add(INIT, POLL, node="n2")
    assert hung(world).cause == "rank-never-joined"
    world.nodes["n2"] = Node("n2", "lost", reason="no answer for 2 s", last_seen=HUNG_SINCE + 3)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("node-unreachable", [2])


def test_nodes_that_are_lost_alike_are_told_in_one_verdict() -> None:
    world = lost_node(HUNG_SINCE + 3)
    world.waiters(2, node="n3")
    world.nodes["n3"] = Node("n3", "lost", reason="no answer for 15 s", last_seen=HUNG_SINCE + 4)
    (verdict,) = [one for one in judged(world).verdicts if one.cause == "node-unreachable"]
    assert blamed(verdict) == [2, 3, 4, 5]
    assert verdict.summary.startswith("n[2-3] with ranks 2-5 are lost: no answer for 15 s")


def test_a_node_lost_long_after_the_hang_is_not_its_cause() -> None:
    found = judged(lost_node(NOW - 60))
    assert "node-unreachable" not in {one.cause for one in found.verdicts}


def test_ranks_of_a_node_that_is_lost_are_not_said_to_wait_still() -> None:
    world = lost_node(NOW - 60)
    said = hung(world).summary
    assert "all 4 ranks waited when last seen" in said
    assert ". But n2 with ranks 2-3 has not answered for 1:00, and did while the job stood" in said
    world.add(user("load", 12), SLEEP)
    verdict = hung(world)
    assert verdict.cause == "missing-collective"
    said = verdict.summary.replace("\n", " ")
    assert (
        "did not issue what ranks 0-1 wait for (ranks 2-3 did when last seen): all_reduce" in said
    )
    world.nodes["n1"] = Node("n1", "lost", reason="no answer for 15 s", last_seen=NOW - 50)
    assert "what ranks 0-3 waited for when last seen: all_reduce" in hung(world).summary


def test_what_ran_on_a_node_that_is_lost_counts_as_still() -> None:
    world = lost_node(HUNG_SINCE + 3)
    world.add(user("step", 12), RUN, node="n2", moved_at=HUNG_SINCE)
    assert judged(world).state == "hung"
