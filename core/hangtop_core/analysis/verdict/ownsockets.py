"""Ranks that read from one another over connections of their own: they wait as in a recv.

For whom is exact: both ends of the connection are in tables of open descriptors.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.peers import End
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor, peer
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.model.frames import is_library
from hangtop_core.stacks.kinds import COMMUNICATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.model.snapshot import Rank
    from hangtop_core.stacks.kinds import Kind

_KIND = attrgetter("kind")
_TEXT = "waits to read from a socket"
_MAY_READ: frozenset[Kind] = frozenset({"remote", "queue"})
"""What a main thread does that reads; multiprocessing has queues and connections over sockets."""
_READS = frozenset({"recvfrom", "recvmsg", "read", "readv"})


def with_sockets(case: Case, read: list[Activity]) -> list[Activity]:
    """Take who reads from another rank for one that receives from it.

    Where others wait for ranks anyway, or they wait for one another in a circle: nothing that is
    done by itself is made a hang by this.
    """
    if _MAY_READ.isdisjoint(map(_KIND, read)):
        return read
    ranks = case.job.ranks
    place = {(rank.node, rank.process.pid): index for index, rank in enumerate(ranks)}
    asked: dict[int, tuple[int, bool]] = {}
    for index, one in enumerate(read):
        # Of libraries that ask services, a thread of a rank may be the service.
        own = one.kind in _MAY_READ and (one.kind == "queue" or one.op is None)
        if own and ranks[index].descriptors is not None:
            found = _asked(case, ranks[index], place)
            asked |= {index: found} if found is not None else {}
    waits = any(one.kind in COMMUNICATION for one in read) if asked else False
    told = list(read)
    for index, (other, _) in asked.items():
        last = _end(case, asked, index, waits)
        if last is not None and (waits or last in asked):
            number = ranks[other].rank
            told[index] = replace(read[index], kind="recv", text=_TEXT, peer=number)
    return told


def _end(case: Case, asked: Mapping[int, tuple[int, bool]], index: int, waits: bool) -> int | None:
    """To which rank the way leads from one that reads; None where others may answer on it.

    A rank with threads of its own may answer by one of them, whatever its main thread does. That
    two of them only read from each other is believed where others wait for ranks.
    """
    seen = set()
    while index in asked and index not in seen:
        seen.add(index)
        index, mutual = asked[index]
        if not (mutual and waits) and _has_threads(case, case.job.ranks[index]):
            return None
    return index


def _asked(case: Case, rank: Rank, place: Mapping[tuple[str, int], int]) -> tuple[int, bool] | None:
    """The rank at the other end of what a rank reads from, and whether that reads there, too.

    None where anything is on its way between them.
    """
    mine = _read(rank)
    known = case.peers.get(End(rank.node, rank.process.pid, mine.fd)) if mine else None
    found = place.get((known.node, known.pid or 0)) if known is not None else None
    if mine is None or mine.socket is None or found is None:
        return None
    other, socket = case.job.ranks[found], mine.socket
    if other is rank or socket.state != "ESTABLISHED" or socket.recv_queue or socket.send_queue:
        return None
    if other.descriptors is None:
        return found, False  # whose it is was found on its node
    for one in other.descriptors.descriptors:
        end = one.socket
        if end is None or (end.local, end.remote) != (socket.remote, socket.local):
            continue
        mutual = _read(other) is one
        queued = end.send_queue or (mutual and end.recv_queue)
        return None if queued else (found, mutual)
    return None


def _read(rank: Rank) -> Descriptor | None:
    """The descriptor that its main thread is blocked in reading from."""
    main, table = rank.process.main_thread, rank.descriptors
    if main is None or main.fd is None or main.syscall not in _READS or table is None:
        return None
    return table.of(main.fd)


def _has_threads(case: Case, rank: Rank) -> bool:
    """Whether threads of a rank run code of the program's own."""
    sample = rank.sample
    return sample is None or any(
        not is_library(frame)
        for thread in sample.threads[1:]
        for frame in case.reader.frames(thread.stack)
    )


def ends(case: Case, subjects: Iterable[Subject]) -> Iterator[Evidence]:
    """The connections that ranks read from, and whose the other ends are."""
    for subject in subjects:
        one = descriptor(subject) if subject.activity.peer is not None else None
        if one is not None:
            yield fact("network", subject.number, name_descriptor(one, peer(case, subject, one)))
