"""Where Enter on a piece of evidence leads."""

from __future__ import annotations

import pytest

from hangtop.keys.keymap import Keymap
from hangtop.views.verdict.goals import ENVIRONMENT, Goal, goal_of, goal_of_need
from hangtop_core.diagnosis import Culprit, Evidence, Need, NeedKind, Source, Verdict

NODES = frozenset({"n1", "n2"})


@pytest.mark.parametrize(
    ("source", "rank", "text", "goal"),
    [
        ("stacks", 2, "sleeps: main thread in train.py:7", Goal("stacks", 2)),
        ("stacks", None, "ranks 0-1,3 wait in all_reduce", Goal("stacks", 0)),
        ("flight", None, "ranks 4-7 have not issued all_reduce", Goal("recorder", 4)),
        ("gpu", 2, "GPU 1: it spins", Goal("gpus", 2)),
        ("log", 2, "train.log: OSError", Goal("logs", 2)),
        ("numerics", 2, "saw inf", Goal("rank", 2, "numerics")),
        ("process", 2, "state S, wchan pipe_read", Goal("rank", 2, "process")),
        ("process", 2, "fd 7 = pipe:[12]", Goal("rank", 2, "files")),
        ("network", 2, "fd 9 = 10.0.0.1:5 -> 10.0.0.2:6", Goal("rank", 2, "files")),
        ("stacks", 2, "DataLoader worker 1 (pid 8): reads", Goal("rank", 2, "children")),
        ("process", 2, "child pid 8 'sleep 9' (state S)", Goal("rank", 2, "children")),
        # What is of a node is there.
        ("process", 2, "n2: no space or inodes are left on /a", Goal("nodes", 2, "node", "n2")),
        ("process", None, "n1: full avg10 is 45", Goal("nodes", None, "node", "n1")),
        ("process", None, "launcher pid 5: state T", Goal("nodes", None, "node", "n2")),
        ("network", None, "n1 is lost: no answer", Goal("nodes", None, "node", "n1")),
        ("kernel", 2, "10:31: Out of memory: Killed", Goal("nodes", 2, "node", "n2")),
        ("kernel", None, "Xid 79, 5 s ago", Goal("nodes", None, "node", "n2")),
        # What a rank was told is in its environment, its software beside it: of whose is odd.
        (
            "environment",
            None,
            "WORLD_SIZE differs: 8 on n2 (ranks 2-3), 4 on n1 (ranks 0-1)",
            Goal("rank", 2, ENVIRONMENT),
        ),
        (
            "environment",
            None,
            "torch 2.4.1 on n2 (rank 3), 2.13.0 on n1 (ranks 0-2)",
            Goal("rank", 3, "process"),
        ),
        (
            "environment",
            None,
            "rank 2 is claimed twice: rank 2 by pid 4 on n1",
            Goal("rank", 2, "process"),
        ),
        (
            "environment",
            None,
            "ranks are numbered node by node: node rank 1 is n1",
            Goal("nodes", None, "node", "n1"),
        ),
        (
            "environment",
            None,
            "the command line asks for 2 nodes",
            Goal("nodes", None, "node", "n2"),
        ),
    ],
)
def test_each_kind_of_evidence_leads_to_what_shows_it(
    source: Source, rank: int | None, text: str, goal: Goal
) -> None:
    verdict = Verdict("unknown", 0.5, (Culprit(2, "n2", 4002),), (), "", (), ())
    assert goal_of(Evidence(source, rank, text), verdict, NODES) == goal


def test_what_ports_say_is_among_them() -> None:
    verdict = Verdict("ib-port-down", 0.5, (Culprit(2, "n2", 4002),), (), "", (), ())
    seen = Evidence("network", None, "mlx5_0/1 (infiniband) is DOWN")
    assert goal_of(seen, verdict, NODES) == Goal("gpus", None, "ports")


@pytest.mark.parametrize(
    ("kind", "goal"),
    [
        ("stacks", Goal("rank", 2, "stack")),
        ("native stacks", Goal("rank", 2, "stack")),
        ("descriptors", Goal("rank", 2, "files")),
        ("recorder", Goal("recorder", 2)),
        ("logs", Goal("logs", 2)),
        ("kernel log", Goal("nodes", 2, "node", "n2")),
    ],
)
def test_what_was_asked_for_is_there(kind: NeedKind, goal: Goal) -> None:
    assert goal_of_need(Need(kind, 2, "n2", 4002, "why")) == goal


def test_a_goal_says_which_key_follows() -> None:
    keys = Keymap().names()
    assert Goal("rank", 2, ENVIRONMENT).label(keys) == "→ 3 Rank e"
    assert Goal("nodes").label(keys) == "→ 9 Nodes"
    own = Keymap({"rank": ("f7",), "environment": ("E",), "gpus": ()}).names()
    assert Goal("rank", 2, ENVIRONMENT).label(own) == "→ F7 Rank E"
    assert Goal("gpus").label(own) == "→ GPUs"
