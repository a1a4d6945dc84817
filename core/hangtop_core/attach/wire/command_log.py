"""The record of all commands that hangtop ran against a node beyond reading /proc."""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec
from msgspec import Struct

MAX_RECORDS = 1000


class CommandRecord(Struct, frozen=True):
    """One command on processes of one node."""

    number: int
    node: str
    pids: tuple[int, ...]
    what: str
    """The command in words and options that a user can check: `py-spy dump --nonblocking`."""
    at: float
    by_itself: bool
    """Whether hangtop ran it unattended, not at a person's request."""
    pauses: bool = False
    """Whether it pauses its target."""
    took_s: float | None = None
    """Seconds it took; None while it runs."""
    outcome: str = "running"


class CommandLog:
    """The newest records. Written by the session's thread, read by any thread."""

    def __init__(self) -> None:
        self._records: OrderedDict[int, CommandRecord] = OrderedDict()
        self._lock = threading.Lock()
        self._last = 0

    def begin(
        self,
        node: str,
        pids: tuple[int, ...],
        what: str,
        at: float,
        *,
        by_itself: bool,
        pauses: bool = False,
    ) -> int:
        """Record the start of a command; return its number for `end`."""
        with self._lock:
            self._last += 1
            self._records[self._last] = CommandRecord(
                self._last, node, pids, what, at, by_itself, pauses
            )
            while len(self._records) > MAX_RECORDS:
                self._records.popitem(last=False)
            return self._last

    def end(self, number: int, at: float, outcome: str) -> None:
        """Record how a command ended."""
        with self._lock:
            record = self._records.get(number)
            if record is not None:
                self._records[number] = msgspec.structs.replace(
                    record, took_s=round(max(at - record.at, 0.0), 3), outcome=outcome
                )

    def records(self) -> tuple[CommandRecord, ...]:
        """Return the records, oldest first."""
        with self._lock:
            return tuple(self._records.values())
