"""Event loops that a rank waits for: the stack is the same whatever comes, its connections tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.idle import is_idle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model.snapshot import Frame, Rank

_LOOPS = ("/asyncio/", "/uvloop/", "/trio/", "/gevent/", "/grpc/")
"""Whose waits are for any of several connections."""
LASTS_S = 600.0
"""Seconds for which that passes for progress in the same functions: a few bytes may be an answer,
or a heartbeat."""


def is_loop(frames: Sequence[Frame]) -> bool:
    """Whether a thread is in an event loop."""
    return any(part in "/" + frame.file for frame in frames for part in _LOOPS)


def answered(rank: Rank, activity: Activity, reader: Reader, began: float) -> float | None:
    """Return when anything last came on a connection of an event loop that a rank waits for.

    The loop is in its main thread, in the one other thread at work, in one of those that make
    the future that it waits for, or in a child that it waits for.

    Args:
        rank: that waits.
        activity: what its main thread does.
        reader: of its stacks.
        began: since when it is watched.
    """
    found = {-tid: at for tid, at in rank.flowed_at.items() if tid < 0}
    sample = rank.sample if found else None
    if sample is None or not sample.threads:
        return None
    main, tids = sample.threads[0].stack, set[int]()
    if reader.uses(main, *_LOOPS):
        tids.add(rank.process.pid)
    if activity.kind in ("join", "queue", "lock"):
        others = [one for one in sample.threads[1:] if not is_idle(reader.frames(one.stack))]
        if len(others) == 1 or reader.uses(main, "/concurrent/futures/"):
            tids |= {one.tid or 0 for one in others if reader.uses(one.stack, *_LOOPS)}
    if activity.kind in ("queue", "child") or activity.family == "pipe-read":
        samples = rank.child_samples
        tids |= {
            child.pid
            for child in rank.children
            if (s := samples.get(child.pid)) is None
            or any(reader.uses(one.stack, *_LOOPS) for one in s.threads[:1])
        }
    last = max((at for tid, at in found.items() if tid in tids), default=None)
    same = max(sample.same_functions_since or began, began)
    return None if last is None or last - same > LASTS_S else last


def of_gloo(rank: Rank) -> set[int]:
    """The threads of a rank on whose connections gloo hears from other ranks, by thread id.

    gloo/transport/tcp/loop.cc gives them their name, seen with torch 2.13.
    """
    return {one.tid for one in rank.process.threads if one.name == "gloo_tcp_loop"}
