"""The recorders of running ranks, judged by the same graph as dumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.analysis.flight.reduce import reduce
from hangtop_core.analysis.flight.waits import Operation, Waits
from hangtop_core.analysis.flight.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.analysis.flight.trace import Trace
    from hangtop_core.model import Collective, Rank


def in_flight(ranks: Iterable[Rank]) -> tuple[Operation, ...]:
    """The collectives that recorders show under way, those that lack ranks first.

    Ranks whose recorder was not read are neither members nor missing.
    """
    traces = [trace for rank in ranks if (trace := _trace(rank)) is not None]
    if not traces:
        return ()
    waits = Waits(World(traces))
    found = [one for one in waits.operations.values() if one.node.kind == "collective"]
    return tuple(sorted(found, key=lambda one: (not one.missing, one.node)))


def _trace(rank: Rank) -> Trace | None:
    """The trace of a rank whose recorder said something."""
    if rank.recorder is None or not rank.recorder.entries:
        return None
    groups = {name: n for n, name in enumerate({e.group: None for e in rank.recorder.entries})}
    entries = [
        _entry(entry, at, groups[entry.group]) for at, entry in enumerate(rank.recorder.entries)
    ]
    return reduce({"entries": entries}, rank.rank, rank.recorder.source or "")


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
