"""Calls of other ranks by torch.distributed.rpc that a rank answers, in threads of its own.

Whoever waits for an answer waits for such a thread, whatever the main thread does meanwhile: a
parameter server's waits in `rpc.shutdown`. One that waits itself to be woken may wait for a call
of yet another rank, so it is a victim as long as anybody else is outside communication.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from hangtop_core.analysis.activity import Activity, doing
from hangtop_core.model.frames import plain_name
from hangtop_core.model.meters import latest
from hangtop_core.stacks.kinds import COMMUNICATION, Kind
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Reader
    from hangtop_core.model.snapshot import Frame, Rank

ENDS = "shutdown"
"""What waits for all ranks, and for no answer."""
_KIND = attrgetter("kind")
_RUNS = "torch/distributed/rpc/internal.py"
_MAIN: frozenset[Kind] = COMMUNICATION | {"join", "queue", "lock", "sleep"}
"""What a main thread does meanwhile that has nothing else to do."""
_TO_BE_WOKEN: frozenset[Kind] = frozenset({"join", "queue", "lock", "sleep", "waiting"})


class _Served(NamedTuple):
    """A thread that answers a call, and what it does."""

    rank: int
    """Index of its rank."""
    activity: Activity


def answers(stack: Sequence[Frame]) -> bool:
    """Whether a thread is in a function that a rank has called by torch.distributed.rpc."""
    first = next((frame for frame in reversed(stack) if not frame.native), None)
    return (
        first is not None
        and plain_name(first.name) == "_run_function"
        and first.file.endswith(_RUNS)
    )


def with_served(ranks: Sequence[Rank], read: list[Activity], reader: Reader) -> list[Activity]:
    """What ranks do, of those that answer a call what the thread does in which they do that."""
    if "work-wait" not in set(map(_KIND, read)):
        return read
    if not any(one.kind == "work-wait" and one.op != ENDS for one in read):
        return read  # nobody waits for an answer
    served = []
    for index, (rank, one) in enumerate(zip(ranks, read, strict=True)):
        found = _served(rank, one, reader) if one.kind in _MAIN and not one.thread else None
        if found is not None:
            served.append(_Served(index, found))
    if not served:
        return read
    theirs = {one.rank for one in served}
    outside = any(
        one.kind not in COMMUNICATION for i, one in enumerate(read) if i not in theirs
    ) or any(one.activity.kind not in COMMUNICATION | _TO_BE_WOKEN for one in served)
    told = list(read)
    for index, found in served:
        if found.kind in COMMUNICATION or (outside and found.kind in _TO_BE_WOKEN):
            text = f"waits for thread {found.thread}, which {found.text}"
            kind: Kind = found.kind if found.kind in COMMUNICATION else "work-wait"
            found = replace(found, kind=kind, text=text, thread="")
        told[index] = found
    return told


def got_on(rank: Rank, activity: Activity, lately: bool, seen: float) -> float | None:
    """When a rank last got on that answers a call, as far as anything but its functions tells.

    Of what its process uses of a CPU nothing is concluded: a thread of TensorPipe always runs.

    Args:
        rank: that answers it.
        activity: what the thread does.
        lately: whether its functions have changed lately, so that running is still believed.
        seen: when its node was last read.
    """
    if activity.running and lately:
        return seen
    moved = [rank.io_moved_at, rank.file_moved_at, rank.wrote_at, *rank.flowed_at.values()]
    if activity.kind in ("child", "compiling"):
        moved += rank.child_moved_at.values()
    return latest(moved)


def _served(rank: Rank, main: Activity, reader: Reader) -> Activity | None:
    """What the thread does that answers a call; of several the one that waits for no other."""
    sample = rank.sample
    if sample is None or len(sample.threads) < 2:
        return None
    found: Activity | None = None
    for thread in sample.threads[1:]:
        if not answers(reader.frames(thread.stack)):
            continue
        said, facts = reader.thread(rank.process, thread)
        does = doing(said, thread, sample, facts, facts.state if facts is not None else "?")
        does = replace(
            does,
            by_thread=True,
            serving=True,
            thread=clean(thread.name or str(thread.tid), 60),
            awaited=f"{main.text} at {main.at}",
        )
        if found is None or _order(does) < _order(found):
            found = does
    return found


def _order(activity: Activity) -> int:
    """What keeps others from getting on comes first: what runs, then what is blocked."""
    if activity.running:
        return 0
    if activity.kind in COMMUNICATION:
        return 3
    return 2 if activity.kind in _TO_BE_WOKEN else 1
