"""Nodes of a Slurm job by ssh where that is allowed, else by srun.

Many sites close ssh to compute nodes, or let only some users in. Each node is tried by ssh first;
where that cannot connect or log in, srun takes over for good. Once a few nodes were closed, nodes
that have not begun start with srun: a thousand refusals would show nothing new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.attach.connect.launcher import Ending
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.attach.connect.channel import Channel
    from hangtop_core.attach.connect.launcher import ByHand, Launcher, Wave

ENOUGH = 3
"""Number of nodes closed to ssh after which others are not tried by ssh any more."""


class SshRefusals:
    """Results of ssh for all nodes of a job together."""

    def __init__(self) -> None:
        self.closed = 0


class EitherLauncher:
    """One node: by the first launcher until that is refused, then by the second."""

    def __init__(self, first: Launcher, second: Launcher, refusals: SshRefusals) -> None:
        self._first = first
        self._second = second
        self._refusals = refusals
        self._began = False
        self._closed: str | None = None
        """Why the first launcher is refused."""

    @property
    def _now(self) -> Launcher:
        if self._closed is None and not self._began and self._refusals.closed >= ENOUGH:
            self._closed = f"{self._first.via}: closed on other nodes"
        return self._first if self._closed is None else self._second

    @property
    def node(self) -> str:
        """Return the name of the node, the same for both."""
        return self._first.node

    @property
    def via(self) -> str:
        """Return how it is reached, and why not by the first launcher."""
        return self._now.via if self._closed is None else f"{self._now.via} ({self._closed})"

    @property
    def by_hand(self) -> ByHand:
        """Return that of the present launcher."""
        return self._now.by_hand

    @property
    def channel(self) -> Channel | None:
        """Return that of the present launcher."""
        return self._now.channel

    @property
    def wave(self) -> Wave:
        """Return that of the present launcher."""
        return self._now.wave

    @property
    def patience(self) -> float:
        """Return that of the present launcher."""
        return self._now.patience

    def argv(self) -> list[str]:
        """Return the command of the present launcher."""
        now = self._now
        self._began = True
        return now.argv()

    def opening(self) -> bytes:
        """Return the data that are written first; the boot is the same for both."""
        return self._now.opening()

    def shell(self) -> list[str] | None:
        """Return that of the present launcher."""
        return self._now.shell()

    def late(self, stderr: str) -> None:
        """Let the present launcher handle it, whichever launcher it came from."""
        self._now.late(stderr)

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Return why the command ended; a first launcher that never connected is not used again."""
        now = self._now
        ending = now.explain(code, stderr, was_ready)
        if now is not self._first or was_ready:
            return ending
        if ending.state not in ("unreachable", "denied"):
            return ending
        self._closed = f"{now.via}: {clean(ending.reason, 120)}"
        self._refusals.closed += 1
        return Ending("connecting", f"{self._closed}; by {self._second.via} instead", True)
