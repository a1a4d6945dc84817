"""When the first operation that is not over will time out, as far as recorders tell.

An operation's time begins when it is enqueued (`time_created_ns`) and is over after the timeout of
its group (`timeout_ms`). NCCL's watchdog thread then ends the process (torch 2.4 to 2.15,
ProcessGroupNCCL.cpp `checkTimeout`; not where TORCH_NCCL_BLOCKING_WAIT or a
TORCH_NCCL_ASYNC_ERROR_HANDLING of 0 is set). gloo has no watchdog: the rank that waits gets an
error (seen with torch 2.13: `Timed out waiting 8000ms for recv operation to complete`), and the
job goes down with it. An estimate: watchdogs look about once a second, gloo counts from when its
own thread begins, and clocks of nodes differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.flight.waits import Operation

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.waits import Waits


class Countdown(Struct, frozen=True):
    """The first timeout."""

    at: float
    """Seconds since the epoch, by the clock of `Trace.created`."""
    rank: int
    timeout_s: float
    """Seconds: of the last entry of its group, else the longest in its recorder."""
    operation: Operation

    @property
    def backend(self) -> str:
        """`nccl`, `gloo`; empty where it is not known."""
        return self.operation.entry.call.backend


def countdown(waits: Waits) -> Countdown | None:
    """The first timeout among what is not over; None where no recorder tells."""
    found: Countdown | None = None
    for one in waits.operations.values():
        for rank, entry in one.entries.items():
            trace = waits.world.traces[rank]
            group = trace.groups[trace.group[entry.at]]
            timeout_s = (group.timeout_ms or trace.timeout_ms) / 1000
            at = entry.created_ns / 1e9 + timeout_s
            if timeout_s and entry.created_ns and (found is None or at < found.at):
                found = Countdown(at, rank, timeout_s, one)
    return found
