"""How long the waits of a rank usually take, as far as it was seen to go on after some of them.

A wait as long as those before, which have ended, is no sign of a hang: the job is slow. Waits that
were over long before the present one began are of another phase, and say nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hangtop_core.model.meters import latest
from hangtop_core.stacks.kinds import COMMUNICATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.model.snapshot import Process, Rank

LONGER = 2.0
"""So many times as long as those before a wait may take and still be another of them."""
ONCE = 1.25
"""The same where there was a single one, and to be longer would be a hang."""
LATELY = 3.0
"""A wait counts that ended at most so many times its own length before the present one began."""


def loaders(rank: Rank) -> Iterator[Process]:
    """The DataLoader workers of a rank that are there."""
    return (one for one in rank.children if one.role == "dataloader-worker" and not one.ended)


def data_came(rank: Rank) -> float | None:
    """When a rank that loads data, or one of its workers, last read anything, however little.

    The rank takes batches out of the pipe of a worker, and the worker indices out of that of its
    rank: neither reads anything while it only waits, or computes.
    """
    times = [rank.given, *(rank.child_given.get(one.pid, ()) for one in loaders(rank))]
    return latest(given[-1] for given in times if given)


def allowed_s(rank: Rank, activity: Activity, since: float, *, regular: bool) -> float:
    """Return for how many seconds a rank may wait as it does and still be as before; 0 if unknown.

    Args:
        rank: that waits.
        activity: what it does.
        since: when its present wait began.
        regular: whether a single wait before is next to no reason to wait for longer than that.
    """
    lasted = sorted(
        (ended - began for began, ended in _waits(rank, activity) if _lately(began, ended, since)),
        reverse=True,
    )
    if not lasted or not regular:
        return LONGER * max(lasted, default=0.0)
    return max([ONCE * lasted[0], *(LONGER * seconds for seconds in lasted[1:2])])


def _lately(began: float, ended: float, since: float) -> bool:
    return since - ended <= LATELY * (ended - began)


def _waits(rank: Rank, activity: Activity) -> Iterator[tuple[float, float]]:
    """When waits of a rank for what it waits for now began and ended."""
    if activity.kind in COMMUNICATION:
        yield from ((one.began, one.ended) for one in rank.waits if one.for_ranks)
    elif activity.kind == "data":
        yield from pairwise(rank.given)
        for one in loaders(rank):
            yield from pairwise(rank.child_given.get(one.pid, ()))
