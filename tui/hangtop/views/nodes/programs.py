"""Python programs that are not ranks, as rows of a list from which one can be opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, line
from hangtop_core.model.node.states import OBSERVED

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Snapshot

_LISTED = re.compile(r"pid (\d{1,10}): (.*)", re.DOTALL)
"""The form in which the probe lists them (`hangtop_probe.table.watch`)."""


@dataclass(frozen=True, slots=True)
class Program:
    """One Python program."""

    key: str
    node: str
    pid: int
    heading: Line
    """All of its row."""


def programs(snapshot: Snapshot) -> list[Program]:
    """Return the Python programs of the connected nodes, as far as the nodes list them."""
    several = len(snapshot.nodes) > 1
    rows = []
    for node in snapshot.nodes:
        listed = map(_LISTED.fullmatch, node.python_processes if node.state in OBSERVED else ())
        for match in filter(None, listed):
            pid, command = int(match[1]), match[2]
            where = line(f"{node.name}  ") if several else ()
            heading = line((f"{pid:>7}", "bold"), "  ", where, command)
            rows.append(Program(f"program:{node.name}:{pid}", node.name, pid, heading))
    return rows
