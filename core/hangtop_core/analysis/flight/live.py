"""The recorders of running ranks, judged by the same graph as dumps."""

from __future__ import annotations

import threading
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.flight.picture import Picture, examine
from hangtop_core.analysis.flight.verdicts import waited
from hangtop_core.analysis.flight.ways import outdated, sources, unread, unreadable
from hangtop_core.diagnosis import Culprit
from hangtop_core.model.snapshot import Rank
from hangtop_core.text.clean import clean, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangtop_core.analysis.flight.picture import FlightDiagnosis
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.model.recorder.trace import Trace

MAX_KEPT = 4
"""Pictures that are kept: one per job that is looked at."""


_Key = tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]


class _Kept(OrderedDict[_Key, tuple[tuple[Rank, ...], "Picture | None"]]):
    """The latest pictures, by rank numbers, nodes and the identities of their recorders.

    What is kept holds the recorders, so that no identity can come to be another object's.
    """

    def find(self, ranks: tuple[Rank, ...]) -> Picture | None:
        key = (
            tuple(map(attrgetter("rank"), ranks)),
            tuple(map(attrgetter("node"), ranks)),
            tuple(map(id, map(attrgetter("recorder"), ranks))),
        )
        with _lock:
            found = self.get(key)
            if found is not None:
                self.move_to_end(key)
                return found[1]
        # Not while the others wait: at worst two of them work out the same.
        made = _picture(ranks)
        with _lock:
            self[key] = (ranks, made)
            while len(self) > MAX_KEPT:
                self.popitem(last=False)
        return made


_kept = _Kept()
_lock = threading.Lock()
"""The session's thread asks, and the screens."""


def picture(ranks: Sequence[Rank]) -> Picture | None:
    """What the recorders of a job's ranks show; None where no recorder has said anything.

    The same object until a recorder says something new: working it out takes milliseconds for
    tens of ranks and seconds for thousands. The session's thread does so when it diagnoses a
    snapshot; whoever asks for the same ranks afterwards gets what is there.
    """
    return _kept.find(tuple(ranks))


def in_flight(seen: Picture | None) -> tuple[Operation, ...]:
    """The collectives that recorders show under way, those that lack ranks first.

    Ranks whose recorder was not read are never missing.
    """
    operations: Iterable[Operation] = seen.waits.operations.values() if seen is not None else ()
    found = [one for one in operations if one.node.kind == "collective"]
    return tuple(sorted(found, key=lambda one: (not one.missing, one.node)))


def _picture(ranks: Sequence[Rank]) -> Picture | None:
    left_out = outdated(ranks)
    traces: dict[int, Trace] = {}
    for rank in ranks:
        trace = rank.recorder.trace if rank.recorder is not None else None
        if trace is not None and rank.rank not in left_out:
            # The number of a rank may have become known only after its recorder was read.
            traces[rank.rank] = trace if trace.rank == rank.rank else _numbered(trace, rank.rank)
    return _placed(_examine(ranks, traces), ranks) if traces else None


def empty(ranks: Sequence[Rank]) -> FlightDiagnosis:
    """The diagnosis of ranks whose recorders could not be read: why, and nothing else."""
    return _examine(ranks, {}).diagnosis


def _examine(ranks: Sequence[Rank], traces: Mapping[int, Trace]) -> Picture:
    return examine(
        list(traces.values()),
        ranks=[rank.rank for rank in ranks],
        unread=unread(ranks),
        recorders=sources(ranks),
        unreadable=unreadable(ranks),
    )


def _placed(seen: Picture, ranks: Sequence[Rank]) -> Picture:
    """With what running ranks are known by: where they are, and until when they were seen."""
    by_rank = {rank.rank: rank for rank in ranks}
    at = max(
        rank.recorder.at
        for rank in ranks
        if rank.recorder is not None and rank.recorder.trace is not None
    )
    newest = max((trace.newest_ns for trace in seen.world.traces.values()), default=0) / 1e9
    hung = waited(seen.world, seen.waits)
    if seen.waits.operations and newest:
        hung = (hung or 0.0) + max(at - newest, 0.0)
    verdicts = [
        replace(one, culprits=tuple(_culprit(known, by_rank) for known in one.culprits))
        for one in seen.diagnosis.verdicts
    ]
    seen.diagnosis = replace(
        seen.diagnosis,
        observed_at=utc(at),
        hung_for_s=None if hung is None or hung < 1.0 else round(hung, 1),
        verdicts=tuple(verdicts),
    )
    return seen


def _culprit(known: Culprit, by_rank: Mapping[int, Rank]) -> Culprit:
    rank = by_rank.get(known.rank) if known.rank is not None else None
    if rank is None:
        return known
    return Culprit(
        known.rank, clean(rank.node), rank.process.pid, rank.local_rank, about=rank.about
    )


def _numbered(trace: Trace, rank: int) -> Trace:
    return replace(trace, rank=rank)
