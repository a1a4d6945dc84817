"""Words and small pieces that several views share."""

from __future__ import annotations

import time
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, labelled, line
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model.snapshot import (
        Frame,
        Job,
        Node,
        Process,
        Rank,
        Snapshot,
        StackSample,
        Thread,
        ThreadStack,
    )

STATE_ROLES = {
    "running": "good",
    "sleeping": "",
    "disk-wait": "bad",
    "stopped": "bad",
    "traced": "bad",
    "zombie": "bad",
    "exited": "bad",
    "unknown": "warn",
}
STATE_LETTERS = {
    "R": "running",
    "S": "sleeping",
    "D": "disk wait",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "exited",
    "I": "idle",
}
SILENT_S = 2.0
"""Seconds without news from a node after which its last known data counts as old."""
ODD_STATES = frozenset({"disk-wait", "stopped", "traced", "zombie", "exited", "unknown"})


def rank_key(rank: Rank) -> str:
    """Return the identity of a rank's process: two processes may claim the same rank."""
    return f"{rank.node}:{rank.process.pid}:{rank.process.start}"


def find_rank(job: Job | None, key: str | None, number: int | None = None) -> Rank | None:
    """Return the rank with this key; the lookup is faster where its rank number is known."""
    if job is None or key is None:
        return None
    if number is not None:
        place = bisect_left(job.ranks, number, key=attrgetter("rank"))
        if place < len(job.ranks) and rank_key(job.ranks[place]) == key:
            return job.ranks[place]
    pid = key.rpartition(":")[0].rpartition(":")[2]
    # Compare numbers first: making a key for each of thousands of ranks is slow.
    number = int(pid) if pid.isdecimal() else -1
    candidates = (rank for rank in job.members if rank.process.pid == number)
    return next((rank for rank in candidates if rank_key(rank) == key), None)


def node_of(snapshot: Snapshot, name: str) -> Node | None:
    """Return the node with this name."""
    return next((node for node in snapshot.nodes if node.name == name), None)


def silence(node: Node | None, now: float) -> float | None:
    """Return the seconds since a node was last heard from; None while it responds."""
    if node is None or node.state == "ready" or node.last_seen is None:
        return None
    quiet = now - node.last_seen
    return quiet if quiet >= SILENT_S else None


def unheard(nodes: Iterable[Node], now: float) -> dict[str, tuple[str, float]]:
    """Return state and silence in seconds, by name, of the silent nodes that were once observed."""
    silences = ((node, silence(node, now)) for node in nodes)
    return {node.name: (node.state, quiet) for node, quiet in silences if quiet is not None}


def last_seen_text(state: str, quiet: float) -> str:
    """Return `lost, seen 43 s ago`: the note beside data of that age."""
    return f"{state}, seen {span(quiet)} ago"


def clock(at: float) -> str:
    """Return the time of day, in the user's time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def day(at: float) -> str:
    """Return the date, in the user's time zone."""
    return time.strftime("%Y-%m-%d", time.localtime(at))


def ago(at: float | None, now: float) -> str:
    """Return how long ago, rounded so that the text changes rarely while the time is short."""
    if at is None:
        return "never"
    seconds = max(now - at, 0.0)
    return "now" if seconds < 1.5 else f"{span(seconds)} ago"


def span(seconds: float | None) -> str:
    """Return a time span without fractions, which would repaint every second for nothing."""
    if seconds is None:
        return "-"
    whole = int(max(seconds, 0.0))
    return f"{whole} s" if whole < 60 else duration(float(whole))


def idle_seconds(rank: Rank, now: float) -> float | None:
    """Return for how long the main thread had not run at `now`, in s; None when not known."""
    return None if rank.moved_at is None else max(now - rank.moved_at, 0.0)


def last_ran(idle: float, *, then: bool) -> str:
    """Return `12 s ago` or `now`; with `then` the text refers to the last news of a silent node."""
    if then:
        return f"{span(idle)} before that" if idle >= 1 else "just before"
    return f"{span(idle)} ago" if idle >= 1 else "now"


def main_thread(sample: StackSample | None) -> ThreadStack | None:
    """Return the main thread of a sample."""
    return sample.threads[0] if sample is not None and sample.threads else None


def main_frames(snapshot: Snapshot, sample: StackSample | None) -> Sequence[Frame]:
    """Return the frames of the main thread, innermost first; empty when there is no stack."""
    thread = main_thread(sample)
    return () if thread is None else snapshot.stacks.get(thread.stack, ())


def call_text(thread: Thread) -> str:
    """Return the system call that a thread is in: `read(fd 4)`, `futex(0x55d0)`."""
    if thread.syscall is None:
        return "-"
    if thread.fd is not None:
        return f"{thread.syscall}(fd {thread.fd})"
    return f"{thread.syscall}({thread.futex})" if thread.futex else thread.syscall


def waits_lines(process: Process) -> list[Line]:
    """Return lines on what the main thread is blocked in, where that is known."""
    main = process.main_thread
    if main is None or not (main.syscall or main.wchan):
        return []
    call = line(call_text(main), ("  wchan ", "label"), main.wchan or "-")
    return [labelled("waits in", call)]
