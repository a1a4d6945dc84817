"""The recorders of running ranks, judged by the same graph as dumps."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from hangtop_core.analysis.flight.picture import Picture, examine
from hangtop_core.analysis.flight.reduce import reduce

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.flight.trace import Trace
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.model import Collective, Rank, Recorder

MAX_KEPT = 4
"""Pictures that are kept: one per job that is looked at."""

_Said = tuple[tuple[int, "Recorder | None"], ...]


class _Kept(OrderedDict[tuple[tuple[int, int], ...], tuple[_Said, Picture | None]]):
    """The latest pictures, by rank numbers and the identities of their recorders.

    What is kept holds the recorders, so that no identity can come to be another object's.
    """

    def find(self, said: _Said) -> Picture | None:
        key = tuple((rank, id(recorder)) for rank, recorder in said)
        found = self.get(key)
        if found is None:
            found = self[key] = (said, _picture(said))
            while len(self) > MAX_KEPT:
                self.popitem(last=False)
        return found[1]


_kept = _Kept()


def picture(ranks: Sequence[Rank]) -> Picture | None:
    """What the recorders of a job's ranks show; None where no recorder has said anything.

    The same object until a recorder says something new: working it out takes milliseconds for
    tens of ranks and seconds for thousands. The session's thread does so when it diagnoses a
    snapshot; whoever asks for the same ranks afterwards gets what is there.
    """
    return _kept.find(tuple((rank.rank, rank.recorder) for rank in ranks if rank.rank >= 0))


def in_flight(ranks: Sequence[Rank]) -> tuple[Operation, ...]:
    """The collectives that recorders show under way, those that lack ranks first.

    Ranks whose recorder was not read are never missing.
    """
    seen = picture(ranks)
    operations: Iterable[Operation] = seen.waits.operations.values() if seen is not None else ()
    found = [one for one in operations if one.node.kind == "collective"]
    return tuple(sorted(found, key=lambda one: (not one.missing, one.node)))


def _picture(said: _Said) -> Picture | None:
    traces = {rank: trace for rank, one in said if one is not None and (trace := _trace(rank, one))}
    if not traces:
        return None
    return examine(list(traces.values()), ranks=[rank for rank, _ in said])


def _trace(rank: int, recorder: Recorder) -> Trace | None:
    """The trace of a rank whose recorder said something."""
    if not recorder.entries:
        return None
    groups = {name: n for n, name in enumerate({e.group: None for e in recorder.entries})}
    entries = [_entry(entry, at, groups[entry.group]) for at, entry in enumerate(recorder.entries)]
    return reduce({"entries": entries}, rank, recorder.source or "")


def _entry(one: Collective, at: int, pg_id: int) -> dict[str, Any]:
    """An entry as dumps have it; the node has settled already whether it is over."""
    return {
        "process_group": (one.group, one.group_desc),
        "pg_id": pg_id,
        "seq_id": one.seq,
        "profiling_name": one.op,
        "input_sizes": one.sizes,
        "state": "completed" if one.completed else "scheduled",
        "record_id": at,
        "time_created_ns": int((one.created_at or 0.0) * 1e9),
    }
