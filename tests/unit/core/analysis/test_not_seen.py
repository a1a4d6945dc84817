"""Ranks of the world that were not seen: what is said of those that wait, and where they are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.model.meters import Stalled
from hangtop_core.model.snapshot import Node
from support.build import World, judged
from support.halves import N1, N2, N3, culprits, world
from support.situations import FUTEX, INIT, POLL, SLEEP, c10d, frame, user
from support.verdicts import causes, first, hung

AWAY = Node("n2", "unreachable", reason="no route to host")
SEND = (c10d("send")[0], *user("push", 30, "dist.send(value, self.below)"))
RECV = (c10d("recv")[0], *user("pull", 36, "dist.recv(gradient, self.below)"))
CIRCLE = (c10d("recv")[0], *user("pull", 36, "dist.recv(x, src=rank ^ 1)"))
LEFT = Stalled("10.0.0.1:40000", "10.0.0.2:51000", 48, 7)


def by_hand(ranks: int, *stacks: Any, nodes: tuple[Node, ...] = (N1, AWAY), **told: Any) -> World:
    """Ranks on n1 alone, of which no launcher says how many a node has."""
    made = world(*nodes)
    for number in range(ranks):
        stack = stacks[number % len(stacks)]
        made.add(stack, POLL if stack is INIT else FUTEX, process=told)
    return made


@pytest.mark.parametrize("stacks", [(SEND,), (SEND, RECV), (RECV, SEND, c10d("all_reduce"))])
def test_who_sends_may_wait_for_a_rank_that_cannot_be_seen(stacks: Any) -> None:
    made = by_hand(3, *stacks)
    verdict = hung(made, world_size=4)
    assert (verdict.cause, culprits(verdict)) == ("node-unreachable", [(3, "n2")])
    assert "rank 3 (n2) was not seen, for n2 cannot be reached" in verdict.summary
    assert any("n2 is the only node on which no rank" in one.text for one in verdict.evidence)
    assert causes(judged(made, world_size=4)) == ["node-unreachable"]


def test_a_node_that_cannot_be_reached_comes_before_ranks_in_other_operations() -> None:
    made = by_hand(3, c10d("all_reduce"), c10d("all_reduce"), c10d("broadcast", at=70))
    assert causes(judged(made, world_size=4))[:2] == ["node-unreachable", "mismatched-collective"]


@pytest.mark.parametrize("stacks", [(SEND,), (SEND, RECV)])
def test_who_sends_may_wait_for_a_rank_of_a_node_that_nobody_named(stacks: Any) -> None:
    found = judged(by_hand(2, *stacks, nodes=(N1,)), world_size=3)
    assert first(found) == ("unknown", [])
    assert "WORLD_SIZE is 3" in found.verdicts[0].summary


def test_who_wait_for_each_other_do_whoever_lacks() -> None:
    assert first(judged(by_hand(2, CIRCLE), world_size=3)) == ("p2p-deadlock", [0, 1])


def test_ranks_that_had_met_have_left_the_only_other_node() -> None:
    made = by_hand(2, c10d("all_reduce"), nodes=(N1, N2))
    verdict = hung(made, world_size=4)
    assert (verdict.cause, verdict.confidence) == ("rank-exited", 0.6)
    assert culprits(verdict) == [(2, "n2"), (3, "n2")]
    # What they were sent, and nobody has acknowledged, tells that they were there.
    made = by_hand(2, c10d("all_reduce"), nodes=(N1, N2), stalled=(LEFT,))
    verdict = hung(made, world_size=4)
    assert (verdict.cause, verdict.confidence) == ("rank-exited", 0.8)
    assert any("10.0.0.2:51000 on n2: 48 bytes" in one.text for one in verdict.evidence)


@pytest.mark.parametrize(
    ("there", "size", "nodes"),
    [
        ((0, 1, 3), 4, (N1, N2)),  # it was beside the others
        ((0, 1), 8, (N1, N2)),  # there must be more nodes
        ((0, 1), 4, (N1, N2, N3)),  # which of the two is not known
    ],
)
def test_where_ranks_were_is_not_guessed(there: Any, size: int, nodes: tuple[Node, ...]) -> None:
    made = world(*nodes)
    for number in there:
        made.add(c10d("all_reduce"), FUTEX, rank=number)
    assert "rank-exited" not in causes(judged(made, world_size=size))


def test_ranks_that_met_at_a_loopback_address_were_on_no_other_node() -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    made = by_hand(2, c10d("all_reduce"), nodes=(N1, N2), env=env)
    assert "n2" not in hung(made, world_size=3).summary


@pytest.mark.parametrize(
    ("launcher", "slurm", "cause"),
    [
        (None, "", "never-joined"),
        ("torchrun", "", "exited"),
        ("srun", "01", "exited"),
        ("srun", "00", "never-joined"),  # below a program that srun has started
    ],
)
def test_who_never_joined_has_left_only_where_a_launcher_starts_all_at_once(
    launcher: str | None, slurm: str, cause: str
) -> None:
    made = World()
    for rank in (0, 1):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
        env |= {"SLURM_LOCALID": slurm[rank]} if slurm else {}
        made.add(INIT, POLL, rank=rank, process={"env": env})
    verdict = hung(made, world_size=3, launcher=launcher)
    assert (verdict.cause, culprits(verdict)) == (f"rank-{cause}", [(2, "n1")])
    assert len(judged(made, world_size=3, launcher=launcher).verdicts) == 1


def test_ranks_that_start_rpc_are_joining() -> None:
    made = World()
    file = "torch/distributed/rpc/__init__.py"
    inside = frame("_init_process_group", "torch/distributed/rpc/backend_registry.py", 123)
    stack = (inside, frame("init_rpc", file, 210), *user("main", 72, "rpc.init_rpc(name)"))
    made.waiters(2, stack, FUTEX)
    assert first(judged(made, world_size=3)) == ("rank-never-joined", [2])
    env = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    made.ranks = [replace(r, process=replace(r.process, env=env)) for r in made.ranks]
    steps = judged(made, world_size=3).verdicts[0].next_steps
    told = "timeout 5 bash -c '</dev/tcp/10.0.0.1/29500' && echo connected"
    assert f"try from there whether the store can be reached: {told}" in steps
    made.add(user("prepare", 5), SLEEP)
    assert "has not reached init_rpc" in hung(made).summary


@pytest.mark.parametrize(("host", "cause"), [("10.0.0.2", "port-blocked"), ("10.9.9.9", "unknown")])
def test_a_port_of_a_node_of_the_job_is_blocked_whatever_waits_for_it(
    host: str, cause: str
) -> None:
    made, wait = world(N1, N2), user("main", 40, "answer.wait()")
    tries = Stalled("10.0.0.1:40000", f"{host}:43145", 0, 6, "SYN_SENT")
    made.add(wait, FUTEX, process={"stalled": (tries,)})
    made.add(wait, FUTEX, node="n2")
    assert hung(made).cause == cause
