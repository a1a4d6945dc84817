"""Whether the ranks of a job, as a session sees them, are where their script leaves them.

A rank that merely starts may rest, too, and what is known of a node that is busy is old: so where
ranks are counts, and whether they rested when they were last looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Rank
    from hangtop_core.model.updates import Update

RESTS_S = 3.0
"""Seconds without running after which a rank rests."""


def main_stack(update: Update, rank: Rank) -> list[str]:
    """Functions that the main thread of a rank was in, as far as it was seen."""
    if rank.sample is None or not rank.sample.threads:
        return []
    return [frame.name for frame in update.snapshot.stacks[rank.sample.threads[0].stack]]


def rests(update: Update, rank: Rank) -> bool:
    """Whether a rank has not run for a while when its node was last heard of."""
    heard = {node.name: node.last_seen for node in update.snapshot.nodes}[rank.node]
    if heard is None or rank.moved_at is None:
        return False
    return heard - rank.moved_at > RESTS_S


def stand(
    update: Update, ranks: Sequence[Rank], count: int, function: str = "hang_in_collective"
) -> bool:
    """Whether so many ranks are there, all in a function, and none of them moves."""
    return len(ranks) == count and all(
        rests(update, rank) and function in main_stack(update, rank) for rank in ranks
    )
