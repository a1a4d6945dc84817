"""Texts that a connection sends once, and rows of threads that refer to them by number."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hangtop_core.model.snapshot import Thread
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_STRINGS = 65_536
"""Entries of a connection's string table at which it is begun anew; twice as many are refused."""

_Cell = str | int | None
ThreadRow = tuple[int, _Cell, _Cell, _Cell, _Cell, int | None, _Cell]
"""Thread id, name, state, wait channel, system call, its descriptor, futex."""


def read_strings(table: dict[int, str], new: Mapping[str, Any]) -> list[str]:
    """Add new entries to a connection's string table; return what is wrong with them."""
    wrong: list[str] = []
    for key, value in new.items():
        is_number = key.isdecimal() and len(key) < 10
        if not is_number or not isinstance(value, str) or len(table) >= 2 * MAX_STRINGS:
            wrong.append(f"string table entry {clean(key, 20)!r}")
            continue
        table[int(key)] = _string(value[:1200])
    return wrong


@lru_cache(4096)
def _string(value: str) -> str:
    """Return an entry, cleaned, with a cache: all nodes of a job send the same ones."""
    return clean(value, 200)


def threads(rows: Iterable[ThreadRow], strings: Mapping[int, str]) -> tuple[Thread, ...]:
    """Make threads of rows, whose texts are literal or numbers of known ones."""
    result = []
    # In a plain loop: a list of rows takes six times as long, and there are tens of thousands.
    for tid, name, state, wchan, syscall, fd, futex in rows:
        thread = Thread(
            tid,
            (strings[name] if isinstance(name, int) else name) or "",
            (strings[state] if isinstance(state, int) else state) or "?",
            strings[wchan] if isinstance(wchan, int) else wchan,
            strings[syscall] if isinstance(syscall, int) else syscall,
            fd,
            strings[futex] if isinstance(futex, int) else futex,
        )
        result.append(thread)
    return tuple(result)
