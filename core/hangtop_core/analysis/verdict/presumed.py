"""What ranks wait for that the stack of their main thread alone does not tell."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.serving import with_served
from hangtop_core.analysis.verdict.awaitedthread import FOR_THREADS
from hangtop_core.analysis.verdict.gpuwaits import with_gpus
from hangtop_core.analysis.verdict.ownsockets import with_sockets
from hangtop_core.analysis.verdict.recorderfacts import outstanding
from hangtop_core.model.frames import is_library
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.frame import Frame
    from hangtop_core.model.snapshot import Rank


def with_waits(case: Case, read: Sequence[Activity]) -> tuple[list[Activity], bool]:
    """What ranks do with all that is below; whether it is presumed for want of stacks."""
    told = with_gpus(case.snapshot, case.job, read)
    told = with_sockets(case, with_threads(case.job.ranks, told, case.reader))
    return with_presumed(case.job.ranks, told)


def with_threads(ranks: Sequence[Rank], read: Iterable[Activity], reader: Reader) -> list[Activity]:
    """A main thread that waits for a thread of its rank which waits for ranks, waits too."""
    both = zip(ranks, read, strict=True)
    told = [_by_thread(r, one, reader) if one.kind in FOR_THREADS else one for r, one in both]
    return with_served(ranks, told, reader)


def _by_thread(rank: Rank, activity: Activity, reader: Reader) -> Activity:
    if rank.sample is None:
        return activity
    for thread in rank.sample.threads[1:]:
        other = reader.reading(thread.stack)
        if other.kind in COMMUNICATION:
            return replace(
                activity,
                kind=other.kind,
                op=other.op,
                # Where the thread is in libraries only, the user's code is where it waits for it.
                site=activity.site if _by_library(other.site) else other.site,
                by_thread=True,
                text=f"waits for thread {clean(thread.name or '?')}, which {other.text}",
            )
    return activity


def _by_library(site: Frame | None) -> bool:
    return site is None or is_library(site)


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
        top = None if _polls_itself(activity) else activity.top
        return top and (top.file, top.name, top.line)
    return None


def _polls_itself(activity: Activity) -> bool:
    """Whether it is known whose wait it is: of zmq, or of an epoll, which the store has none of."""
    if activity.family != "poll":
        return False
    calls = (activity.main.syscall or "") if activity.main is not None else ""
    by_zmq = activity.top is not None and "/zmq/" in activity.top.file
    return by_zmq or calls.startswith("epoll")


def _presume(activity: Activity) -> Activity:
    text = "waits for outstanding communication"
    if activity.top is None:
        text = "sleeps on a futex, as in a collective (no stack)"
    elif activity.family in ("socket", "poll"):
        text = "waits for an answer over a socket"
    kind = "store" if activity.family in ("socket", "poll") else "work-wait"
    return replace(activity, kind=kind, text=text)
