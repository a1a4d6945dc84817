"""Sampling rates: often enough to detect a hang soon, and rare enough for the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.model.updates import QUIET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.node.hardware import Gpu
    from hangtop_core.model.updates import Options
    from hangtop_core.state.tracked import Tracked

EARLY = 30.0
"""Seconds after its first sample in which a process may be sampled more often."""
EARLY_MOVES = 11
"""Samples of a moving process in that time, at one a second and ever slower."""
REAL_AGAIN, REAL_NODES = 60.0, 128
"""Seconds after which even a process that never moved is really sampled, because other threads may
have moved: the first interval, for up to this many nodes. It grows in proportion with more nodes,
since each sample costs the head, and with time, see `sampling`."""
SAMPLE_COST_S = 0.015
"""CPU seconds of one run of py-spy, until the node reports its own figure."""
SCREEN_SHARE = 0.003
"""Share of one core of a node for stacks of moving processes, while a person watches a screen."""
STALLED_SHARE, STALLED_S = 0.03, 180.0
"""Share of one core while a job stalls without a verdict: on a busy node a run of py-spy costs
more, and its ranks would be sampled minutes apart. The second value is the maximum duration of this
in seconds."""
MAX_COST_S = 0.2
"""Maximum CPU seconds of one sample that are believed: an overloaded node is sampled anyway."""
ASK_AGAIN, ASK_LAST = 30.0, 60.0
"""Seconds between two descriptor tables or recorder readings of a moving process; maximum seconds
between two checks for the recorder of a process that has rested for long."""
TABLE_COST_S = 0.25
"""CPU seconds of a descriptor table with the other ends: a walk over all descriptors of the node
(`hangtop_probe.descriptors.owners`), at 30,000 descriptors."""


class Rate(NamedTuple):
    """Seconds between two samples of a moving process."""

    every: float
    early: float | None = None
    """Seconds in the first half minute, where that is less: loops show sooner.

    A run of py-spy takes 10 ms of the node's CPU, and a moving process gets eleven instead of six
    runs in that time. With a thousand nodes rounds are two seconds apart, see `rounds`.
    """
    rest: float = QUIET
    """Seconds of rest after which a process is sampled again, unless it wakes up now and then: to
    detect hangs only, not every rest between two steps needs a sample."""
    apart: float = 0.0
    """Minimum seconds between two samples of moving processes of one node, which take turns. So the
    cost of stacks does not grow with the ranks of a node. It does not apply in the first half
    minute of a process that is sampled `early`."""

    again: float = REAL_AGAIN
    """Seconds after which a resting process is really sampled again, at first."""
    silent: float = 0.0
    """Seconds of silence that the node has announced, because nothing changes there."""

    tables: float = ASK_AGAIN
    """Seconds between two descriptor tables of a moving process."""

    def of(self, tracked: Tracked, now: float) -> tuple[float, int]:
        """Return the seconds for one process, and how many samples do not slow it down."""
        first = tracked.sample.first_at if tracked.sample is not None else None
        if self.early is None:
            return self.every, 0
        if first is not None and now - first > EARLY:
            return self.every, EARLY_MOVES
        return min(self.early, self.every), 0


def rate(options: Options, nodes: int, cost: float, silent: float, *, stalls: bool) -> Rate:
    """Return the sampling rate of a node.

    Args:
        options: options of the session.
        nodes: number of observed nodes.
        cost: CPU seconds of one sample there; 0 where the cost does not matter now.
        silent: seconds of silence that the node has announced.
        stalls: whether a job stalls without a verdict.
    """
    share = options.budget
    if share is None and options.sample_early is not None:
        share = SCREEN_SHARE
    if share is not None and stalls:
        share = max(share, STALLED_SHARE)
    return Rate(
        options.sample_every,
        options.sample_early,
        options.rest,
        apart=cost / share if share else 0.0,
        again=REAL_AGAIN * max(1.0, nodes / REAL_NODES),
        silent=silent,
        tables=max(ASK_AGAIN, TABLE_COST_S / (options.budget or 1.0)),
    )


def stalls(diagnoses: Iterable[Diagnosis]) -> bool:
    """Return whether a job has stalled for a while, not for long, and has no verdict yet."""
    return any(
        not diagnosis.verdicts and STALLED_AFTER_S <= (diagnosis.stalled_for_s or 0.0) < STALLED_S
        for diagnosis in diagnoses
    )


def gpus_are_idle(gpus: Iterable[Gpu], now: float, rest_s: float) -> bool:
    """Return whether GPUs of a node worked while hangtop watched, and none has since.

    Ranks that spin while they wait look as if they moved; then their stacks are due. A GPU counts
    as idle after ``rest_s`` seconds.
    """
    worked = [gpu.worked_at for gpu in gpus if gpu.worked_at is not None]
    return bool(worked) and max(worked) < now - rest_s
