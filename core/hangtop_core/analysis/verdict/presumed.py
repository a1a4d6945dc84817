"""What ranks wait for that the stack of their main thread alone does not tell."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.dictionary import COMMUNICATION
from hangtop_core.analysis.frames import where
from hangtop_core.analysis.idle import FUTURES, in_task, is_idle
from hangtop_core.analysis.verdict.recorded import outstanding
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.analysis.dictionary import Kind
    from hangtop_core.model import Rank


OF_THREADS: frozenset[Kind] = frozenset({"join", "queue"})
"""What a main thread does that another thread of its rank has to end."""
_ENDS = frozenset({"remote", "io", "file-lock", "child", "output"})


def with_threads(ranks: Sequence[Rank], read: Iterable[Activity], reader: Reader) -> list[Activity]:
    """A main thread that waits for a thread of its rank which waits for ranks, waits too."""
    return [_by_thread(rank, one, reader) for rank, one in zip(ranks, read, strict=True)]


def _by_thread(rank: Rank, activity: Activity, reader: Reader) -> Activity:
    if activity.kind not in ("join", "queue", "lock") or rank.sample is None:
        return activity
    for thread in rank.sample.threads[1:]:
        other = reader.reading(thread.stack)
        if other.kind in COMMUNICATION:
            return replace(
                activity,
                kind=other.kind,
                op=other.op,
                site=other.site,
                by_thread=True,
                text=f"waits for thread {clean(thread.name or '?')}, which {other.text}",
            )
    return activity


def behind(rank: Rank, activity: Activity, reader: Reader) -> Activity:
    """What a main thread is kept from by the one thread of its own that it waits for.

    A future waits for a thread of a pool that is in a task; who joins a thread, or waits for a
    queue, for the only one that has anything to do. Where that one waits in turn, for a peer, a
    file, a lock file or a program, it is the end of the chain.
    """
    sample = rank.sample
    if activity.by_thread or sample is None:
        return activity
    future = activity.op in FUTURES
    at_work = []
    for thread in sample.threads[1:]:
        frames = reader.frames(thread.stack)
        if is_idle(frames) or (future and not in_task(frames)):
            continue
        at_work.append(thread)
    if len(at_work) != 1 or at_work[0].tid is None:
        return activity
    [one] = at_work
    process = replace(rank.process, pid=one.tid or 0)
    other = reader.process(process, replace(sample, threads=(one,)))
    if other.kind not in _ENDS or other.family == "poll":
        return activity
    place = f" in thread '{clean(one.name or '?', 60)}', for which the main thread waits at "
    return replace(other, by_thread=True, behind=f"{place}{where(activity.site)}")


def with_presumed(ranks: Sequence[Rank], read: Sequence[Activity]) -> tuple[list[Activity], bool]:
    """Take what most ranks sleep in alike for a wait for one another.

    An asynchronous collective waits inside C with no frame of its own (`work.wait()`), and so
    does the store; without any stack only the kernel's wait is left to compare. Whether it came
    to that is returned, too.
    """
    both, blind = zip(ranks, read, strict=True), False
    found = [_presume(one) if outstanding(rank, one) else one for rank, one in both]
    known = sum(1 for activity in found if activity.kind in COMMUNICATION)
    alike: dict[object, list[int]] = defaultdict(list)
    for index, activity in enumerate(found):
        if ranks[index].sample is not None:
            alike[_alike(activity)].append(index)
    alike.pop(None, None)
    for key, members in alike.items():
        enough = len(members) * 2 > len(read) or (len(members) * 2 == len(read) and not known)
        if len(members) < 2 or not enough:
            continue
        blind = blind or isinstance(key, str)
        for index in members:
            found[index] = _presume(found[index])
    return found, blind


def _alike(activity: Activity) -> object:
    if activity.kind == "unknown" and activity.family == "futex" and activity.top is None:
        return "futex"
    ambiguous = activity.kind == "waiting" or (activity.kind == "remote" and activity.op is None)
    if ambiguous and activity.top is not None and activity.family in ("futex", "poll", "socket"):
        return (activity.top.file, activity.top.name, activity.top.line)
    return None


def _presume(activity: Activity) -> Activity:
    text = "waits for outstanding communication"
    if activity.top is None:
        text = "sleeps on a futex, as in a collective (no stack)"
    elif activity.family in ("socket", "poll"):
        text = "waits for an answer over a socket, as all others do"
    kind = "store" if activity.family in ("socket", "poll") else "work-wait"
    return replace(activity, kind=kind, text=text)
