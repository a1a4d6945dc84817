"""Targets of evidence: the pane that Enter on a piece of evidence opens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hangtop.keys.actions import page_names
from hangtop_core.text.rank_sets import rank_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hangtop_core.diagnosis import Evidence, Need, Verdict

ENVIRONMENT = "environment"
"""The target that the environment key opens; not a pane of Rank."""
_SCREENS = {"stacks": "stacks", "flight": "recorder", "gpu": "gpus", "log": "logs"}
"""The screen for each source of evidence, whichever rank it is about."""
_RANK_PANES = {"network": "files", "process": "process", "numerics": "numerics"}
"""The pane of the Rank screen for each source of evidence."""
_PORTS = frozenset({"ib-port-down", "nccl-ib-error"})
_CHILDREN = ("child pid ", "DataLoader worker ")
"""How evidence about child processes of a rank begins."""
_NEEDS = {
    "recorder": ("recorder", None),
    "descriptors": ("rank", "files"),
    "logs": ("logs", None),
    "kernel log": ("nodes", "node"),
}
"""Screen and pane for each kind of need; the rank's stack for all others."""
_RANK = re.compile(r"(?<!node )\branks? (\d{1,7})\b")
_VARIABLE = re.compile(r"\b[A-Z]{2,}(?:_[A-Z0-9]+)+\b")
_AROUND_NAMES = ":;,()"


class Goal(NamedTuple):
    """The target that Enter on a piece of evidence opens."""

    screen: str
    rank: int | None = None
    pane: str | None = None
    node: str | None = None

    def label(self, keys: Mapping[str, str]) -> str:
        """Return `→ 3 Rank`, with the key that opens it; `keys` as `Keymap.names` has them."""
        environment_key = keys.get(ENVIRONMENT) if self.pane == ENVIRONMENT else None
        words = (keys.get(self.screen), page_names((self.screen,)), environment_key)
        return f"→ {' '.join(filter(None, words))}"


def goal_of_need(need: Need) -> Goal:
    """Return the pane that shows what a rule has asked for."""
    screen, pane = _NEEDS.get(need.kind, ("rank", "stack"))
    return Goal(screen, need.rank, pane, need.node if screen == "nodes" else None)


def _controller(evidence: Evidence, verdict: Verdict) -> int | None:
    """Return the culprit controller that a piece of evidence is about, as `Rank.rank` has it."""
    if evidence.rank is not None or evidence.source != "stacks":
        return None
    controllers = [
        culprit
        for culprit in verdict.culprits
        if culprit.rank is None and culprit.pid and culprit.role
    ]
    named = (culprit for culprit in controllers if f"pid {culprit.pid})" in evidence.text)
    return next((rank_key(culprit.node, culprit.pid or 0) for culprit in named), None)


def goal_of(evidence: Evidence, verdict: Verdict, nodes: Collection[str]) -> Goal:
    """Return the pane that shows what a piece of evidence says.

    Args:
        evidence: the evidence.
        verdict: the verdict it belongs to.
        nodes: names of the nodes of the job.
    """
    control = _controller(evidence, verdict)
    if control is not None:
        return Goal("rank", control, "stack")
    rank = _first_rank(evidence)
    screen = _SCREENS.get(evidence.source)
    if rank is not None and evidence.text.startswith(_CHILDREN):
        return Goal("rank", rank, "children")
    if screen is not None:
        return Goal(screen, rank)
    if evidence.source == "network" and verdict.cause in _PORTS:
        return Goal("gpus", rank, "ports")
    if evidence.source == "environment" and rank is not None:
        # The rank with the unusual environment comes first.
        return Goal("rank", rank, ENVIRONMENT if _VARIABLE.search(evidence.text) else "process")
    node = _first_node(evidence, nodes)
    if rank is None or _is_of_node(evidence, node):
        return Goal("nodes", rank, "node", node or _node_of(rank, verdict))
    pane = "files" if evidence.text.startswith("fd ") else _RANK_PANES.get(evidence.source)
    return Goal("rank", rank, pane)


def _first_rank(evidence: Evidence) -> int | None:
    """Return the rank of a piece of evidence; the first in its text if there are several."""
    if evidence.rank is not None:
        return evidence.rank
    match = _RANK.search(evidence.text)
    return int(match[1]) if match else None


def _first_node(evidence: Evidence, nodes: Collection[str]) -> str | None:
    words = (word.strip(_AROUND_NAMES) for word in evidence.text.split(" "))
    return next((word for word in words if word in nodes), None)


def _is_of_node(evidence: Evidence, node: str | None) -> bool:
    return evidence.source == "kernel" or (
        node is not None and evidence.text.startswith(f"{node}: ")
    )


def _node_of(rank: int | None, verdict: Verdict) -> str | None:
    """Return the node of the culprit with this rank, or else of the first culprit."""
    by_rank = {culprit.rank: culprit.node for culprit in reversed(verdict.culprits)}
    return by_rank.get(rank, verdict.culprits[0].node if verdict.culprits else None)
