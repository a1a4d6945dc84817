"""The state of a rank, from the state of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hangtop_core.model.process import Process

RankState = Literal[
    "running", "sleeping", "disk-wait", "stopped", "traced", "zombie", "exited", "unknown"
]
_STATES: dict[str, RankState] = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "disk-wait",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "exited",
    "x": "exited",
}
"""Letters of /proc/PID/stat, proc_pid_stat(5)."""


def rank_state(process: Process) -> RankState:
    """Return the state of a rank from its process."""
    if process.gone_at is not None:
        return "exited"
    return _STATES.get(process.state[:1], "unknown")
