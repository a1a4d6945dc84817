"""InfiniBand's error 12 from both ends: no path between two nodes, and neither is to blame."""

from __future__ import annotations

import pytest

from hangtop_core.logs.judging.conclude import conclude
from support.logs import judged
from support.verdicts import blamed

USES = "{node}:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:{address}<0>\n"
OLD = "error 12, opcode 0, len 0, vendor err 129 (Recv)"
NEW = "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqLen=0 vendor_err=129 req_type=Send"
GAVE_UP = (
    "{node}:{pid}:9 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer {peer}<4> with "
)
A, B, C = "10.2.0.4", "10.2.0.5", "10.2.0.6"
ADDRESSES = {"node-a": A, "node-b": B, "node-c": C}


def lines(*ends: tuple[str, str], said: str = OLD, told: bool = True, label: str = "") -> str:
    """What NCCL prints on nodes of peers that do not answer, and before, of its addresses."""
    uses = [USES.format(node=n, address=a) for n, a in ADDRESSES.items() if told]
    gave_up = [GAVE_UP.format(node=n, pid=i, peer=p) + said + "\n" for i, (n, p) in enumerate(ends)]
    return "".join(label + line for line in (*uses, *gave_up))


BOTH = [
    lines(("node-a", B), ("node-b", A)),
    lines(("node-a", B), ("node-b", A), said=NEW),
    lines(("node-b", A), ("node-a", B), ("node-a", B), told=False),
    # All ranks of the two nodes, and what one of the nodes was not asked.
    lines(("node-a", B), ("node-a", B), ("node-b", A), ("node-b", A)),
    lines(("node-a", B), ("node-b", A), ("node-c", B)),
]


@pytest.mark.parametrize("text", BOTH)
def test_both_ends_that_get_no_answer_have_no_path(text: str) -> None:
    one = conclude(judged(text))[0]
    assert (one.cause, blamed(one)) == ("nccl-ib-error", [])
    assert one.summary.startswith("no InfiniBand path between node-a and node-b: each says")
    assert "allocated together" in one.next_steps[0]
    assert [e.text.partition(":")[0] for e in one.evidence[:2]] == ["node-a", "node-b"]


ONE = [
    lines(("node-a", B)),
    # Two say so of a third one, which says nothing: that one may be dead.
    lines(("node-a", C), ("node-b", C)),
    lines(("node-a", C), ("node-b", C), told=False),
    # One has lost two nodes, and one of these another one.
    lines(("node-a", B), ("node-a", C), ("node-b", C)),
    lines(("node-a", C), ("node-b", A)),
    lines(("node-a", B), ("node-b", A), said="error 5, opcode 0, len 0, vendor err 249"),
]


@pytest.mark.parametrize("text", ONE)
def test_one_end_alone_tells_of_its_peer(text: str) -> None:
    found = conclude(judged(text))
    assert not any("no InfiniBand path" in one.summary for one in found)
    assert not any("allocated together" in step for one in found for step in one.next_steps)


def test_ranks_of_both_ends_are_not_blamed() -> None:
    text = "".join(
        f"[node-{name}:0]:{lines((f'node-{name}', peer), told=False)}"
        for name, peer in (("a", B), ("b", A))
    )
    one = conclude(judged(text))[0]
    assert "no InfiniBand path" in one.summary
    assert blamed(one) == []
