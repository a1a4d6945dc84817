"""How often processes are looked at: as often as tells a hang soon, as seldom as nodes can bear."""

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
"""Samples that a process which moves gets in that time, at one a second and ever slower."""
REAL_AGAIN, REAL_NODES = 60.0, 128
"""Seconds after which even a process that never moved is really sampled, for other threads may
have: at first, and of so many nodes. Of more in proportion, since each sample costs the head, and
ever more seldom, see `sampling`."""
SAMPLE_COST_S = 0.015
"""CPU seconds of one run of py-spy, as long as the node has not told what one takes there."""
SCREEN_SHARE = 0.003
"""Of one core of a node, for stacks of processes that move, where somebody looks at a screen."""
STALLED_SHARE, STALLED_S = 0.03, 180.0
"""The same while a job stalls and nobody knows why: on a node with much to do a run of py-spy costs
more, and its ranks would be looked at minutes apart. For so many seconds of that at most."""
MAX_COST_S = 0.2
"""CPU seconds of one sample that are believed: a node that is out of breath is asked anyway."""
ASK_AGAIN, ASK_LAST = 30.0, 60.0
"""Seconds between two descriptor tables or recorder readings of a process that moves; between
two looks for the recorder of one that has rested for long, at most."""
TABLE_COST_S = 0.25
"""CPU seconds of a descriptor table with who is at the other ends: a walk over all descriptors of
the node (`hangtop_probe.descriptors.owners`), where that has 30,000 of them."""


class Rate(NamedTuple):
    """Seconds between two samples of a process that moves."""

    every: float
    early: float | None = None
    """In the first half minute, where that is less: what a process repeats shows sooner.

    A run of py-spy takes 10 ms of the node's CPU, and a process that moves gets eleven instead of
    six of them in that time. With a thousand nodes rounds are two seconds apart, see `rounds`.
    """
    rest: float = QUIET
    """Seconds of rest after which a process is looked at closely, unless it wakes up now and then:
    who only waits for hangs need not look at every rest between two steps."""
    apart: float = 0.0
    """Seconds at least between two samples of processes that move, of one node: they take turns.
    So what stacks cost does not grow with the ranks of a node. Not in the first half minute of a
    process that is sampled `early`."""

    again: float = REAL_AGAIN
    """Seconds after which what rests is really sampled again, at first."""
    silent: float = 0.0
    """Seconds for which the node has said that it says nothing, as nothing is new there."""

    tables: float = ASK_AGAIN
    """Seconds between two descriptor tables of a process that moves."""

    def of(self, known: Tracked, now: float) -> tuple[float, int]:
        """Return the seconds for one process, and how many of its samples do not slow it down."""
        first = known.sample.first_at if known.sample is not None else None
        if self.early is None:
            return self.every, 0
        if first is not None and now - first > EARLY:
            return self.every, EARLY_MOVES
        return min(self.early, self.every), 0


def rate(options: Options, nodes: int, cost: float, silent: float, *, stalls: bool) -> Rate:
    """Return how often to sample on a node.

    Args:
        options: of the session.
        nodes: how many are observed.
        cost: CPU seconds of one sample there; 0 where that does not matter now.
        silent: seconds for which the node has said that it says nothing.
        stalls: whether a job stalls, and nobody knows why.
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
    """Whether a job has stalled for a while, not for long, and nothing explains it yet."""
    return any(
        not one.verdicts and STALLED_AFTER_S <= (one.stalled_for_s or 0.0) < STALLED_S
        for one in diagnoses
    )


def gpus_stand_still(gpus: Iterable[Gpu], now: float, rest: float) -> bool:
    """Whether GPUs of a node have worked while they were watched, and none has for so long.

    Ranks that spin while they wait look as if they moved; then it is time to look at their stacks.
    """
    worked = [gpu.worked_at for gpu in gpus if gpu.worked_at is not None]
    return bool(worked) and max(worked) < now - rest
