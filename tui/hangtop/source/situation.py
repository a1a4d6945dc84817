"""The state of the app in one object, which decides which actions are possible."""

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
    """The rank under the cursor, or the one that the Rank screen shows."""
    node: Node | None = None
    """The node under the cursor, or the node of the rank."""
    capabilities: Mapping[str, Fact] = field(default_factory=dict)
    """Capabilities of the rank's node."""
    jobs: int = 0
    in_slurm: bool = False
    """Whether Slurm can be asked for more jobs."""
    readonly: bool = False
    live: bool = True
    """False when a recording is shown."""
    files: bool = False
    """Whether dump files without processes are shown."""
    tracing: bool = False
    traced: bool = False
    """Whether there is a trace, running or done."""
    paused: bool = False
    earlier: bool = False
    """Whether an earlier snapshot is kept."""
    later: bool = False
    """Whether a later snapshot is kept."""
    writing: bool = False
    """Whether a capture is being written."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The key of every action that has one, for use in messages."""
