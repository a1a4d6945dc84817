"""Counters and connections of a process, as the kernel reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from hangtop_core.text.clean import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

TOUCH_NS = 500_000
"""CPU time, in nanoseconds between two readings, that a thread takes at most to be stopped and sent
back into its wait: 20 to 100 microseconds each for strace, py-spy, gdb or a signal."""


class Meters(Struct, frozen=True, gc=False):
    """Counters of one process; only their movement means something.

    Sources: /proc/PID/stat (cpu), /proc/PID/task/PID/schedstat and sched (main thread),
    /proc/PID/io, all Linux.
    """

    cpu_s: float = 0.0
    """User and system time of all threads."""
    main_cpu_ns: int | None = None
    """Time on a CPU of the main thread."""
    main_switches: int | None = None
    """Voluntary context switches of the main thread."""
    main_waits: int | None = None
    """Number of different waits of the main thread: calls, arguments, stack pointers."""
    main_last_ran_s: float | None = None
    """Seconds since the main thread last ran (se.exec_start); also valid before hangtop
    attached."""
    read_bytes: int | None = None
    """rchar: bytes returned by read-like calls, cached or not."""
    main_read_bytes: int | None = None
    """rchar of the main thread alone, such as the bytes that a worker's pipe gave it."""
    write_bytes: int | None = None
    """wchar."""
    printed_bytes: int = 0
    """Growth of the files of descriptors 1 and 2 since the process was first read, from their
    positions in /proc/PID/fdinfo, and at most the bytes it wrote; 0 for pipes and terminals."""
    main_printed_bytes: int = 0
    """The share of this growth while the main thread wrote (/proc/PID/task/PID/io)."""
    rss: int | None = None


MetersPart: Any = msgspec.defstruct(
    "MetersPart",
    [(item.name, item.type | UnsetType, UNSET) for item in msgspec.structs.fields(Meters)],
)
"""The meters of one update: only changed fields are sent."""


def sent_values(part: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of a `MetersPart` by name; ``names`` are the fields that were sent."""
    return {name: value for name in names if (value := getattr(part, name, UNSET)) is not UNSET}


class Stalled(Struct, frozen=True, gc=False):
    """A stalled TCP connection, mostly one whose data are not acknowledged.

    From /proc/PID/net/tcp. The pauses double: three retransmissions are 1.4 s, seven 25 s, nine 100
    s.
    """

    local: Text
    remote: Text
    unacknowledged: int
    """Unacknowledged data in bytes."""
    retransmits: int
    """Retransmissions in a row."""
    state: Text = "ESTABLISHED"
    """Also SYN_SENT: not answered yet; or CLOSE_WAIT: closed by the other end."""


def grown(old: int | None, new: int | None) -> int:
    """Return the growth of a counter; 0 where it is unknown or was reset."""
    return max(new - old, 0) if old is not None and new is not None else 0


def io_bytes(old: Meters, new: Meters) -> tuple[int, int]:
    """Return the bytes read and written between two readings, without what was printed.

    Output of a spinner or a heartbeat is no progress, however much it is.
    """
    written = grown(old.write_bytes, new.write_bytes)
    printed = grown(old.printed_bytes, new.printed_bytes)
    return grown(old.read_bytes, new.read_bytes), max(written - printed, 0)


def latest(times: Iterable[float | None]) -> float | None:
    """Return the latest of the known times."""
    return max((time for time in times if time is not None), default=None)


def only_waited(old: Meters, new: Meters) -> bool:
    """Return whether only the time since the main thread ran differs."""
    return replace(new, main_last_ran_s=old.main_last_ran_s) == old


def sent_back(old: Meters, new: Meters) -> bool:
    """Return whether a tool can only have stopped the main thread for a moment.

    The main thread is in the same wait as before, used next to no CPU time, and its process read
    and wrote nothing, as it would have for the smallest step of a collective.
    """
    same = old.main_waits is not None and old.main_waits == new.main_waits
    are_counted = None not in (old.main_cpu_ns, new.main_cpu_ns, old.read_bytes, old.write_bytes)
    same_bytes = (new.read_bytes, new.write_bytes) == (old.read_bytes, old.write_bytes)
    return (
        same and are_counted and same_bytes and grown(old.main_cpu_ns, new.main_cpu_ns) <= TOUCH_NS
    )


def moved_at(old: Meters | None, new: Meters, at: float) -> float | None:
    """Return when a main thread last ran, by the scheduler or by counters that moved since."""
    if new.main_last_ran_s is not None:
        return at - max(new.main_last_ran_s, 0.0)
    if old is None:
        return None
    counted = grown(old.main_switches, new.main_switches)
    return at if counted or grown(old.main_cpu_ns, new.main_cpu_ns) else None


class Point(Struct, frozen=True, gc=False):
    """Counters at one time, from which shares of a core are computed."""

    at: float
    cpu_s: float
    main_ns: int | None
    switches: int | None


def point(at: float, meters: Meters) -> Point:
    """Return the counters as a point."""
    return Point(at, meters.cpu_s, meters.main_cpu_ns, meters.main_switches)
