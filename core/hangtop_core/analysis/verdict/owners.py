"""Which processes are those of a job: looked up by node and process id, and not looked for."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from hangtop_core.analysis.openers import names_by_node
from hangtop_core.text.launchers import ELASTIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case

ENDS_ALL_S = 10.0
"""Seconds within which torchrun's agent ends all ranks once one has failed: it looks ten times a
second (torch 2.13, torch/distributed/elastic/agent/server/api.py)."""


def ends_all(case: Case, node: str) -> bool:
    """Whether a launcher runs there that ends all ranks once one has failed.

    Where the others run on, a rank of its that lacks has left with status 0: what the kernel tells
    is of somebody else.
    """
    return any(
        one.node == node
        and one.launcher in ELASTIC
        and not (one.ended or one.frozen or one.state in ("T", "t"))
        for one in case.job.launchers
    )


class Owners:
    """The processes of one job."""

    def __init__(self, case: Case) -> None:
        self._ranks = {(s.rank.node, s.pid): s for s in case.subjects}
        self._children = {
            (s.rank.node, child.pid): s for s in case.subjects for child in s.rank.children
        }
        self._case, self._snapshot = case, case.snapshot
        self._launchers = {(one.node, one.pid) for one in case.job.launchers}

    def rank(self, node: str, pid: int | None) -> Subject | None:
        """The rank that a process is."""
        return self._ranks.get((node, pid or 0))

    def of(self, node: str, pid: int | None) -> Subject | None:
        """The rank that a process is, or is a child of."""
        return self.rank(node, pid) or self._children.get((node, pid or 0))

    @cached_property
    def on_gpus(self) -> Mapping[tuple[str, int], Sequence[Subject]]:
        """Who is on each GPU, by node and number of the GPU."""
        found: dict[tuple[str, int], list[Subject]] = defaultdict(list)
        for subject in self._case.on_gpus:
            for index in dict.fromkeys(gpu.index for gpu in self._case.gpus(subject)):
                found[subject.rank.node, index].append(subject)
        return found

    def has(self, node: str, pid: int | None) -> bool:
        """Whether a process is of the job: a rank, a child of one, or a launcher."""
        return self.of(node, pid) is not None or (node, pid) in self._launchers

    @cached_property
    def _names(self) -> Mapping[str, Mapping[int, str]]:
        return names_by_node(self._snapshot)

    def names(self, node: str) -> Mapping[int, str]:
        """What processes of jobs on a node, also of other ones, are called, by process id."""
        return self._names.get(node, {})
