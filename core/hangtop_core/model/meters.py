"""Counters and connections of a process, as the kernel tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from hangtop_core.text.clean import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

TOUCH_NS = 500_000
"""Time on a CPU, in nanoseconds between two readings, that a thread takes at most to be stopped
and sent back into its wait: 20 to 100 microseconds each for strace, py-spy, gdb or a signal."""


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
    """Different waits the main thread was seen in: calls, arguments, stack pointers."""
    main_last_ran_s: float | None = None
    """Seconds since the main thread last ran (se.exec_start); valid also before we came."""
    read_bytes: int | None = None
    """rchar: bytes returned by read-like calls, cached or not."""
    main_read_bytes: int | None = None
    """rchar of the main thread alone: what it was given, by a pipe from a worker say."""
    write_bytes: int | None = None
    """wchar."""
    printed_bytes: int = 0
    """By how much the files of descriptors 1 and 2 have grown since it was first looked at, by
    their positions in /proc/PID/fdinfo, and by no more than it wrote; 0 for pipes and terminals."""
    main_printed_bytes: int = 0
    """Of that, what grew while the main thread wrote (/proc/PID/task/PID/io)."""
    rss: int | None = None


MetersPart: Any = msgspec.defstruct(
    "MetersPart",
    [(item.name, item.type | UnsetType, UNSET) for item in msgspec.structs.fields(Meters)],
)
"""Some of them, as they are sent: those that changed."""


def told(part: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return by name what a `MetersPart` holds; ``names`` are those that were sent."""
    return {name: value for name in names if (value := getattr(part, name, UNSET)) is not UNSET}


class Stalled(Struct, frozen=True, gc=False):
    """A TCP connection that gets nowhere: mostly one on which nothing is acknowledged.

    From /proc/PID/net/tcp. The pauses double: three times are 1.4 s, seven 25 s, nine 100 s.
    """

    local: Text
    remote: Text
    unacknowledged: int
    """Bytes."""
    retransmits: int
    """In a row."""
    state: Text = "ESTABLISHED"
    """Or SYN_SENT: nobody has answered yet; or CLOSE_WAIT: the other end has closed it."""


def grown(old: int | None, new: int | None) -> int:
    """By how much a counter has grown; 0 where it is not known, or began anew."""
    return max(new - old, 0) if old is not None and new is not None else 0


def io_bytes(old: Meters, new: Meters) -> tuple[int, int]:
    """Return the bytes read and written between two readings, without what was printed.

    What a spinner or a heartbeat prints is no progress, however much it is.
    """
    written = grown(old.write_bytes, new.write_bytes)
    printed = grown(old.printed_bytes, new.printed_bytes)
    return grown(old.read_bytes, new.read_bytes), max(written - printed, 0)


def latest(times: Iterable[float | None]) -> float | None:
    """The latest time that is known."""
    return max((time for time in times if time is not None), default=None)


def only_waited(old: Meters, new: Meters) -> bool:
    """Whether nothing but the time since the main thread ran differs."""
    return replace(new, main_last_ran_s=old.main_last_ran_s) == old


def sent_back(old: Meters, new: Meters) -> bool:
    """Whether the main thread can only have been held for a moment, by whatever tool.

    It is in the very wait it was in, and what it did took next to no time; and its process has
    read and written nothing, as it would have for the smallest step of a collective.
    """
    same = old.main_waits is not None and old.main_waits == new.main_waits
    known = None not in (old.main_cpu_ns, new.main_cpu_ns, old.read_bytes, old.write_bytes)
    said = (new.read_bytes, new.write_bytes) == (old.read_bytes, old.write_bytes)
    return same and known and said and grown(old.main_cpu_ns, new.main_cpu_ns) <= TOUCH_NS


def moved_at(old: Meters | None, new: Meters, at: float) -> float | None:
    """When a main thread last ran, by the scheduler, or by counters that have moved since."""
    if new.main_last_ran_s is not None:
        return at - max(new.main_last_ran_s, 0.0)
    if old is None:
        return None
    counted = grown(old.main_switches, new.main_switches)
    return at if counted or grown(old.main_cpu_ns, new.main_cpu_ns) else None


class Point(Struct, frozen=True, gc=False):
    """What shares of a core are worked out from, at one time."""

    at: float
    cpu_s: float
    main_ns: int | None
    switches: int | None


def point(at: float, meters: Meters) -> Point:
    """Note these counters."""
    return Point(at, meters.cpu_s, meters.main_cpu_ns, meters.main_switches)
