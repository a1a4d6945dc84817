"""Recorders of ranks that have ended: what gloo calls over in them and is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.flight.alike import rooted
from hangtop_core.model.recorder.trace import COMPLETED, DONE, P2P, RETIRED, STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hangtop_core.model.recorder.trace import Trace

_NEVER = 1 << 62
"""A number that no operation comes to."""


def reopen(traces: Mapping[int, Trace], group_of: Callable[[int, int], int]) -> None:
    """Set open what gloo calls over, although a member has ended without joining it.

    An operation that fails, as when a peer goes, counts as completed there.

    Args:
        traces: by rank.
        group_of: the number of a group, of a rank and its own number of that group.
    """
    last: dict[int, int] = {}
    for rank, trace in traces.items():
        for local, seq in _reached(trace).items() if trace.ended else ():
            index = group_of(rank, local)
            last[index] = min(last.get(index, seq), seq)
    for rank, trace in traces.items() if last else ():
        limits = [last.get(group_of(rank, n), _NEVER) for n in range(len(trace.groups))]
        failing = [call.kind == "collective" and not rooted(call) for call in trace.calls]
        columns = zip(trace.group, trace.seq, trace.call, trace.flag, strict=True)
        trace.raw_flag = bytes(
            _reopened(flag) if seq > limits[group] and failing[call] else flag
            for group, seq, call, flag in columns
        )


def _reopened(flag: int) -> int:
    """The flag of an operation that is not over after all, unless completion was recorded."""
    return flag if flag & STATE == COMPLETED else flag & ~(DONE | RETIRED)


def _reached(trace: Trace) -> dict[int, int]:
    """The last number that a rank has issued, by its groups; without those of which it is lost."""
    pairs = dict(zip(zip(trace.group, trace.flag, strict=True), trace.seq, strict=True))
    whole = not trace.wrapped and not trace.dropped
    found = dict.fromkeys(range(len(trace.groups)), 0) if whole else {}
    for (group, flag), seq in pairs.items():
        if not flag & P2P:
            found[group] = max(found.get(group, 0), seq)
    return found
