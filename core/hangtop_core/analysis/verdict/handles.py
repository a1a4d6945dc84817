"""Handles that ranks wait on: whether they are of sends and receives, as the program says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.callers import line_of, started
from hangtop_core.stacks.kinds import PEER_TO_PEER

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.callers import Block

PASSING = PEER_TO_PEER | {"work-wait"}
"""What a rank that sends or receives may be met in."""


def passes(subject: Subject) -> bool:
    """Whether a rank sends or receives, or waits for what its class or file has started of that."""
    return subject.activity.kind in PEER_TO_PEER or made(subject) is not None


def made(subject: Subject) -> Block | None:
    """The line that started what a rank waits for: a send or receive; None where nobody knows."""
    activity = subject.activity
    if activity.kind != "work-wait" or activity.site is None:
        return None
    return started(activity.site)


def made_at(subject: Subject) -> str:
    """` (`work = isend(x)`, ring.py:30)`, where that is known; else empty."""
    found, site = made(subject), subject.activity.site
    if found is None or site is None:
        return ""
    return f" (`{found[1]}`, {line_of(site, found)})"
