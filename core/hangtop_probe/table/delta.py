"""Compute the changes of the process table since they were last sent, with texts as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Container, Dict, List, NamedTuple, Optional, Set

if TYPE_CHECKING:
    from ..proc.activity import ThreadRow

POLLING_S = 0.05
"""CPU seconds of a process with a waiting main thread that are not sent at once: polling threads of
gloo and of stores take some ms each second."""


class Strings:
    """Numbers for texts, each assigned once per connection."""

    def __init__(self) -> None:
        self._numbers: Dict[str, int] = {}
        self._new: Dict[str, str] = {}

    def number(self, text: Optional[str]) -> Optional[int]:
        """Return the number of ``text``, None for None."""
        if text is None:
            return None
        known = self._numbers.get(text)
        if known is None:
            known = self._numbers[text] = len(self._numbers)
            self._new[str(known)] = text
        return known

    def __len__(self) -> int:
        return len(self._numbers)

    def take_new(self) -> Dict[str, str]:
        """Return the texts added since the last call, by number."""
        new, self._new = self._new, {}
        return new

    def restart(self) -> None:
        """Forget all numbers: the head gets all texts anew."""
        self._numbers, self._new = {}, {}


class Steady:
    """Reports a thread as running only once it runs in two passes in a row.

    Threads that poll for ever are seen running now and then. The main thread of a rank is always
    reported.
    """

    def __init__(self) -> None:
        self._ran: Dict[int, Set[int]] = {}
        self._shown: Dict[int, List[ThreadRow]] = {}

    def rows(self, pid: int, rank: bool, rows: List[ThreadRow]) -> List[ThreadRow]:
        """Return the rows of a process as they are to be sent."""
        runs = {row.tid for row in rows if row.state == "R" and not (rank and row.tid == pid)}
        new = runs - self._ran.get(pid, set())
        if new:
            shown = {row.tid: row for row in self._shown.get(pid, ())}
            rows = [shown.get(row.tid, row) if row.tid in new else row for row in rows]
        self._ran[pid], self._shown[pid] = runs, rows
        return rows

    def forget(self, present: Container[int]) -> None:
        """Forget processes that have exited."""
        for pid in [pid for pid in self._ran if pid not in present]:
            del self._ran[pid], self._shown[pid]


class Delta(NamedTuple):
    """The changes between two passes."""

    set: Dict[str, Dict[str, Any]]
    gone: Dict[str, Dict[str, Any]]


class Differ:
    """Remembers the fields that were sent and returns the changes."""

    def __init__(self) -> None:
        self._sent: Dict[int, Dict[str, Any]] = {}
        self.whole = True
        """Whether the next delta has all fields, not only the changes."""

    def restart(self) -> None:
        """Send everything whole again."""
        self.whole = True

    def delta(self, now: Dict[int, Dict[str, Any]], minor: bool = True) -> Delta:
        """Return the changes since the last call. A pid reused by another process is in both parts.

        Without ``minor`` the meters of processes that only poll are not sent. The time since a main
        thread ran is never sent alone: the head has a clock.
        """
        changed: Dict[str, Dict[str, Any]] = {}
        gone = self._gone(now)
        for pid, fields in now.items():
            known = not self.whole and str(pid) not in gone
            old = self._sent.get(pid, {}) if known else {}
            new = {k: v for k, v in fields.items() if k not in old or old[k] != v}
            if len(new) == 1 and "meters" in new and _is_minor(old, fields, minor):
                now[pid] = {**fields, "meters": old["meters"]}
            elif new:
                if old.get("meters") and new.get("meters"):
                    new["meters"] = _part(old["meters"], new["meters"])
                changed[str(pid)] = new
        self._sent, self.whole = now, False
        return Delta(changed, gone)

    def _gone(self, now: Dict[int, Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
        """Return the processes that have exited since, with their exit code where it is known."""
        gone: Dict[str, Dict[str, Any]] = {}
        for pid, old in self._sent.items():
            if pid not in now or now[pid]["start"] != old["start"]:
                code = old.get("exit_code")
                gone[str(pid)] = {} if code is None else {"exit_code": code}
        return gone


def _part(old: Dict[str, Any], new: Dict[str, Any]) -> Dict[str, Any]:
    """Return the changed meters and the time since the main thread ran, relative to this piece."""
    return {k: v for k, v in new.items() if old.get(k) != v or k == "main_last_ran_s"}


def _is_minor(old: Dict[str, Any], new: Dict[str, Any], minor: bool) -> bool:
    """Whether a change of meters alone need not be sent now."""
    before, after = old.get("meters"), new["meters"]
    if not before or not after:
        return False
    moved = {k for k, v in after.items() if before.get(k) != v} - {"main_last_ran_s"}
    if not moved:
        return True
    polls = moved == {"cpu_s"} and 0 < after["cpu_s"] - before["cpu_s"] < POLLING_S
    return not minor and (polls or new.get("role") == "launcher")
