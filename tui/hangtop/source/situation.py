"""What the app shows right now, in one object that decides which actions are possible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.model.snapshot import Fact, Job, Node, Rank


@dataclass(frozen=True)
class Situation:
    """The facts that actions depend on."""

    screen: str
    job: Job | None = None
    rank: Rank | None = None
    """The rank that the cursor is on, or that the rank screen shows."""
    node: Node | None = None
    """The node that the cursor is on, or that the rank runs on."""
    capabilities: Mapping[str, Fact] = field(default_factory=dict)
    """Of the rank's node."""
    jobs: int = 0
    in_slurm: bool = False
    """Whether Slurm can be asked for more of them."""
    readonly: bool = False
    live: bool = True
    """False when what is shown is a recording."""
    files: bool = False
    """Whether it is dump files, of no processes."""
    tracing: bool = False
    traced: bool = False
    """Whether there is a trace, running or done."""
    paused: bool = False
    earlier: bool = False
    """Whether a picture before the shown one is kept."""
    later: bool = False
    """Whether one after it is."""
    writing: bool = False
    """Whether a capture is being written."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The key of every action that has one, to tell of it."""
