"""Sets of ranks as text: ``0-3120,3122-7015``, the notation of ClusterShell and Slurm.

`fold` writes the one canonical form; `parse` reads typed text and reports the position of errors.

A rank without a known number has a key instead: a number below any rank, made from its node and
pid, that is never shown. `rank_name` calls it `rank ? (pid 4711)`; in a set it is `pid4711`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

MAX_RANK = 999_999
"""Larger numbers are typing errors, and a range up to such a number would fill the memory."""

_PIECE = re.compile(r"\s*+(pid)?(\d{1,9})\s*+(?:-\s*+(?:pid)?(\d{1,9})\s*+)?")
_KEYS = 1 << 52
"""Keys are below its negative, and above -2**53, which readers of JSON represent exactly."""
_PROGRAM = 1 << 22
"""Bit of programs that are no ranks; the bits below hold the pid, which Linux limits to them (64
bit)."""
_PID = _PROGRAM - 1


def rank_key(node: str, pid: int, *, is_program: bool = False) -> int:
    """Return the stand-in for the number of a rank that has none; ascending by pid on a node.

    With ``is_program`` return the stand-in of a program that is no rank.
    """
    place = (crc32(node.encode(errors="replace")) & 0x1FFFFFFF) << 23
    return -(_KEYS | place | (_PROGRAM if is_program else 0) | (_PID - pid % _PROGRAM))


def is_key(rank: int) -> bool:
    """Return whether a rank has no number."""
    return rank <= -_KEYS


def is_program(rank: int) -> bool:
    """Return whether this is the key of a program that is no rank."""
    return is_key(rank) and bool(-rank & _PROGRAM)


def pid_of(rank: int) -> int:
    """Return the pid that a key was made from."""
    return _PID - (-rank & _PID)


def contains(wanted: Container[int], rank: int) -> bool:
    """Return whether a set from `parse` contains a rank: by its number, else by its pid."""
    return rank in wanted or (is_key(rank) and _typed(pid_of(rank)) in wanted)


def _typed(pid: int) -> int:
    """Return the stand-in for `pid4711` where the node is unknown."""
    return -(_KEYS | (_PID - pid % _PROGRAM))


def rank_name(rank: int, about: str = "", *, node: str = "", pid: int | None = None) -> str:
    """Return `rank 2`, `rank ? (pid 4711)`, or `process 4711` for a program that is no rank.

    ``about`` describes a rank without a number, by its title for example: `rank ? (pid 4711,
    VLLM::Worker_TP1)`. With node and pid: `rank 2 (gpu03, pid 4711)`.
    """
    head, inside = f"rank {rank}", [node, f"pid {pid}" if pid else ""]
    if is_program(rank):
        head, inside = f"process {pid_of(rank)}", [node, about]
    elif is_key(rank):
        head, inside = "rank ?", [node, f"pid {pid_of(rank)}", about]
    shown = ", ".join(filter(None, inside))
    return f"{head} ({shown})" if shown else head


def rank_label(rank: int) -> str:
    """Return `2`, or `pid4711` for a rank without a number: as in `fold`, and as typed."""
    return f"pid{pid_of(rank)}" if is_key(rank) else str(rank)


def fold(ranks: Iterable[int]) -> str:
    """Return the canonical text of a set of ranks: ascending, runs joined, ``""`` when empty."""
    keys, numbers = _apart(ranks)
    pids = [f"pid{run}" for run in _runs(map(pid_of, keys))]
    return ",".join([*_runs(numbers), *pids])


def names(ranks: Iterable[int]) -> str:
    """Return `rank 2`, `ranks 0-1,3`, `ranks 0-1,? (pid 4711)`, or `processes 4711-4712`."""
    keys, numbers = _apart(ranks)
    if len(keys) + len(numbers) == 1:
        return rank_name((keys + numbers)[0])
    programs = [pid_of(key) for key in keys if is_program(key)]
    pids = [pid_of(key) for key in keys if not is_program(key)]
    parts = [*_runs(numbers)]
    if pids:
        parts.append(f"? (pid{'s' * (len(pids) > 1)} {','.join(_runs(pids))})")
    parts_of_text = [f"ranks {','.join(parts)}"] if parts or not programs else []
    if programs:
        parts_of_text.append(f"process{'es' * (len(programs) > 1)} {','.join(_runs(programs))}")
    return " and ".join(parts_of_text)


def _apart(ranks: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return the keys among ranks, and the numbers, both ascending."""
    ordered = sorted(set(ranks))
    first = bisect_right(ordered, -_KEYS)
    return ordered[:first], ordered[first:]


def _runs(numbers: Iterable[int]) -> Iterator[str]:
    """Yield runs of consecutive numbers: `3`, `5-7`."""
    ordered = sorted(set(numbers))
    breaks = [at for at, number in enumerate(ordered) if at and ordered[at - 1] != number - 1]
    for first, end in pairwise([0, *breaks, len(ordered)]) if ordered else ():
        low, high = ordered[first], ordered[end - 1]
        yield str(low) if low == high else f"{low}-{high}"


def parse(text: str) -> frozenset[int]:
    """Return the ranks that ``text`` names.

    Blanks around numbers and repeated ranks are accepted; ``""`` is the empty set.

    Raises:
        ValueError: the text cannot be read; the message has the position (from 1).
    """
    ranks: set[int] = set()
    if not text.strip():
        return frozenset()
    at = 0
    while True:
        match = _PIECE.match(text, at)
        if match is None:
            raise _wrong(text, at, "a rank number is missing")
        first = int(match[2])
        last = int(match[3]) if match[3] is not None else first
        limit = _PID if match[1] else MAX_RANK
        if last > limit:
            raise _wrong(
                text, match.end() - 1, f"{'pids' if match[1] else 'ranks'} go up to {limit}"
            )
        if last < first:
            raise _wrong(text, match.start(3), f"the range {first}-{last} runs backwards")
        ranks.update(map(_typed, range(first, last + 1)) if match[1] else range(first, last + 1))
        at = match.end()
        if at == len(text):
            return frozenset(ranks)
        if text[at] != ",":
            raise _wrong(text, at, f"{text[at]!r} does not belong in a rank set")
        at += 1


def _wrong(text: str, at: int, why: str) -> ValueError:
    return ValueError(f"{why}, at position {at + 1} of {text!r}")
