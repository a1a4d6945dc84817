"""Causes in the ports of a node's network devices."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import on_node, word
from hangtop_core.model.node.hardware import UP
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.node.hardware import Nic
    from hangtop_core.text.commands import Step


def _down(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    used = case.own_nodes
    if len(used) < 2:
        return  # within one node nothing goes over the network
    states: dict[str, list[bool]] = defaultdict(list)
    for name in used & case.nodes.keys():
        for port in case.nodes[name].nics:
            states[port.name].append(port.state in UP)
    for name in sorted(used & case.nodes.keys()):
        nics = case.nodes[name].nics
        bad = [(port, sure) for port in nics if (sure := _sure(port, states[port.name]))]
        mine = tuple(s for s in case.waiters if s.rank.node == name) if bad else ()
        if not mine:
            continue
        confidence = max(sure for _, sure in bad)
        told: dict[str, list[str]] = defaultdict(list)
        for port, _ in bad[:SHOWN]:
            port_name = clean(f"{port.name} ({port.kind}, {port.state or 'no state'})", 60)
            told[_what(port)].append(port_name)
        ports = "; ".join(f"{', '.join(some)} of {name} {what}" for what, some in told.items())
        yield Hit(
            subjects=mine,
            summary=sentence(
                case,
                f"network port {ports}, and {who(mine)} {is_are(mine, 'is', 'are')} there",
                blamed=mine,
            ),
            evidence=tuple(_facts(port) for port, _ in bad[:SHOWN]),
            steps=_steps(name, [port for port, _ in bad]),
            confidence=confidence,
        )


def _sure(port: Nic, states: Sequence[bool]) -> float:
    """How sure it is that a port that should carry data does not; 0 where it does or need not.

    ``states`` says of this port on every node of the job whether it is up.
    """
    rdma = port.kind in ("infiniband", "roce")
    lost = _lost(port)
    if port.state in UP:
        return 0.5 if rdma and lost else 0.0
    if port.state in ("gone", "silent") or port.was_up or lost:
        return 0.9 if rdma else 0.7
    if not rdma or port.state is None:
        return 0.0  # an interface that nobody plugged in
    # Down from the beginning: only what is up on the other nodes should be up here.
    if states.count(False) > 1 or not any(states):
        return 0.0
    return 0.8 if states.count(True) > 1 else 0.5


def _lost(port: Nic) -> int:
    """How often it lost its link while it was watched."""
    return port.new_errors.get("link_downed", 0) + port.new_errors.get("carrier_down", 0)


def _what(port: Nic) -> str:
    """What became of a port."""
    if port.state in UP:
        return "lost its link and is up again"
    if port.state in ("gone", "silent") or port.was_up or _lost(port):
        return "went down or lost its link"
    return "is down"


def _facts(port: Nic) -> Evidence:
    parts = [f"{port.name} ({port.kind}) is {port.state or 'without a state'}"]
    if port.physical:
        parts.append(f"physical state {port.physical}")
    if port.was_up and port.state not in UP:
        parts.append("it was up when hangtop came")
    parts += [f"{count} more {name}" for name, count in sorted(port.new_errors.items())[:6]]
    return fact("network", None, clean("; ".join(parts), 300))


def _steps(name: str, ports: Sequence[Nic]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for port in ports[:2]:
        device = word(port.name.partition("/")[0])
        if device is None:
            continue
        rdma = port.kind in ("infiniband", "roce")
        look = ("ibstat", device) if rdma else ("ip", "-s", "link", "show", device)
        steps.append(on_node(name, *look))
    return (
        *steps,
        on_node(
            name,
            Sign.KERNEL_LOG,
            Sign.PIPE,
            "grep",
            "-i",
            "-e",
            "mlx",
            "-e",
            "link down",
            Sign.PIPE,
            "tail",
        ),
        Advice("look at cable, transceiver and switch port; NCCL_IB_HCA leaves a device out"),
    )


DOWN = Rule(
    cause="ib-port-down",
    title="A network port is down",
    seen="A port of an InfiniBand or RoCE device of a node of the job went down, lost its link or "
    "vanished while it was watched; or it is down, and up on the other nodes. Of Ethernet "
    "interfaces only what went down while it was watched.",
    excluded="The job is on one node. A rank outside communication is looked at first.",
    confidence=0.9,
    next_steps=("Look at the port: ibstat", "Look at cable, transceiver and switch port"),
    find=_down,
    states=AT_START,
    complete="states and counters of ports are read with every pass; of a cable the node knows no "
    "more",
)
