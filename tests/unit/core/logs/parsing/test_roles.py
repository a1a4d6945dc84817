"""Labels of torchrun whose role is a node's name without a colon: where the name ends."""

from __future__ import annotations

import pytest

from hangtop_core.logs.parsing.prefix import Prefixes
from support.logs import judged, parsed

HOST = "  host      : {}\n  rank      : 0 (local_rank: 0)\n"


def places(labels: list[str], more: str = "") -> list[tuple[str | None, int | None]]:
    """Node and local rank of each label, where a file has lines of all of them."""
    text = "".join(f"[{one}]:step {step}\n" for step in (1, 2) for one in labels)
    prefixes = Prefixes(text + more)
    origins = [prefixes.take(f"[{one}]:x")[0] for one in labels]
    return [(one.node, one.local) for one in origins]


@pytest.mark.parametrize(
    "nodes",
    [
        ["gpu01", "gpu02"],
        ["node1"],
        ["node10"],
        ["n0"],
        ["node1", "node10", "node11"],
        ["ip-10-0-0-7", "ip-10-0-0-8"],
        ["trinity-gpu-9", "login"],
        ["alpha", "beta"],
    ],
)
@pytest.mark.parametrize("size", [2, 8])
def test_the_labels_of_a_file_tell_where_names_end(nodes: list[str], size: int) -> None:
    wanted = [(node, local) for node in nodes for local in range(size)]
    assert places([f"{node}{local}" for node, local in wanted]) == wanted


def test_a_node_may_have_over_ten_ranks() -> None:
    wanted = [(node, local) for node in ("gpu01", "gpu02") for local in range(16)]
    assert places([f"{node}{local}" for node, local in wanted]) == wanted


@pytest.mark.parametrize("role", ["trainer", "default", "worker-"])
@pytest.mark.parametrize("size", [1, 8, 16, 128])
def test_a_role_that_is_no_name_keeps_its_ranks(role: str, size: int) -> None:
    labels = [f"{role}{local}" for local in range(size)]
    assert places(labels) == [(None, local) for local in range(size)]


def test_ranks_of_torch_or_a_report_tell_what_labels_do_not() -> None:
    assert places(["trainer10", "trainer11"], "[trainer10]:[rank10]: x\n") == [
        (None, 10),
        (None, 11),
    ]
    assert places(["node13"], HOST.format("node1.cluster")) == [("node1", 3)]
    assert places(["default10", "default11"]) == [(None, 10), (None, 11)]


def test_where_nothing_tells_that_is_said() -> None:
    text = "[node13]:step 1\n[node13]:KeyError: 'labels'\n"
    assert places(["node13"]) == [("node13", None)]
    (one,) = judged(text).ambiguities
    assert one.code == "run-together"
    assert one.text == "Labels such as [node13]: do not tell where the name ends"
    assert "--role $(hostname -s): --tee 3" in one.steps[0]
    assert not judged(text + "[node10]:x\n[node11]:x\n[node12]:x\n").ambiguities


def test_ranks_of_nodes_without_a_colon_are_numbered_as_with_one() -> None:
    def log(colon: str) -> str:
        lines = ((n, n % 2, f"gpu0{1 + n // 2}{colon}") for n in range(4))
        return "".join(f"[{role}{local}]:[rank{n}]: step\n" for n, local, role in lines)

    for colon in ("", ":"):
        assert judged(log(colon)).ranks == (0, 1, 2, 3)
    origins = [stream.origin for stream in parsed(log("")).streams]
    assert [(one.node, one.local) for one in origins] == [
        ("gpu01", 0), ("gpu01", 1), ("gpu02", 0), ("gpu02", 1),
    ]  # fmt: skip
