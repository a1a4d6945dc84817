"""Asks Slurm how jobs have ended, on threads of its own: Slurm may be slow to answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hangtop_core.attach.slurm.slurm_end import how_ended
from hangtop_core.model.node.states import UNSEEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.model.snapshot import Snapshot

PAUSES_S = (0.2, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each query: a job is over for Slurm only once all of its processes are gone."""
MOST = 16
"""Maximum jobs that are queried, so that made-up job ids cannot cause any number of queries."""


class SlurmEnds:
    """The jobs that were queried."""

    def __init__(self, closing: threading.Event, tell: Callable[[str, str], None]) -> None:
        """Report the key of each job that Slurm has ended, and how, until ``closing`` is set."""
        self._closing = closing
        self._tell = tell
        self._asked: set[tuple[str, str]] = set()

    def look(self, snapshot: Snapshot) -> None:
        """Query each job that has ended, or whose nodes were lost, since the last call."""
        unseen = {node.name for node in snapshot.nodes if node.state in UNSEEN}
        for job in snapshot.jobs:
            number = job.ranks[0].process.env.get("SLURM_JOB_ID") if job.ranks else None
            over = all(rank.ended or rank.node in unseen for rank in job.ranks)
            if number is None or not over:
                continue
            if (job.key, number) not in self._asked and len(self._asked) < MOST:
                self._asked.add((job.key, number))
                started = min(rank.process.started_at for rank in job.ranks)
                self._begin(job.key, number, started)

    def _begin(self, key: str, number: str, started: float) -> None:
        asks = threading.Thread(target=self._ask, args=(key, number, started), daemon=True)
        asks.start()

    def _ask(self, key: str, number: str, started: float) -> None:
        for pause in PAUSES_S:
            if self._closing.wait(pause):
                return
            try:
                how = how_ended(number, started)
            except OSError:
                return
            if how is not None:
                if how:
                    self._tell(key, how)
                return
