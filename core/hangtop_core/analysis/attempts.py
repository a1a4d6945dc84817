"""Lines that the log of a rank has again and again, and those that tell of attempts that fail.

Lines that are equal but for numbers, and say that an attempt has failed, are no progress.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.dictionary import COMMUNICATION
from hangtop_core.analysis.standing import FLOOR_S, GONE, Standing
from hangtop_core.logs.output import with_rank
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.logs.output import Output
    from hangtop_core.model import Job, Rank, Snapshot

_END = 16_384
"""Characters at the end of a log that are looked at."""
_NEWEST = 8
"""Lines at its end of which one must say so: after it nothing else has happened."""
_TIMES = 3
"""Who has failed so often, and did nothing else, fails the next time, too."""
NO_SPACE = re.compile(
    r"No space left on device|\bENOSPC\b|[Ee]rrno (?:28|122)\b|Disk quota exceeded|\bEDQUOT\b"
    r"|inline_container\.cc.{0,12}unexpected pos|PytorchStreamWriter failed|StorageFull"
    r"|database or disk is full|not enough (?:free )?(?:disk )?space|disk (?:is )?full"
)
"""How programs, torch and Rust say that a file system, or what one may have of it, is full."""
_FAILS = re.compile(
    r"(?<!\b0 )fail(?:ed|s|ure)?\b(?!\W{0,3}\d)|[a-z]Error\b|Exception\b|\berrno\b|\berror\b"
    r"(?!\W{0,3}\d)|refused|unavailable"
    r"|time[d-]* ?out|\b(?:could not|cannot|unable to)\b",
    re.IGNORECASE,
)
"""No measures: `error 0.25`, `0 failed`."""
_AGAIN = re.compile(
    r"\b(?:re-?try(?:ing)?|retries|retried|attempts?|tries|trying|again|back(?:ing)?[ -]?off)\b",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"\d+(\.\d+)?")


class Again(NamedTuple):
    """A line of a log that was printed again and again."""

    line: str
    own: bool
    """Whether this rank alone prints to that log."""


class Repeats:
    """Lines that the logs of a job have again and again; each log is read once for all ranks."""

    def __init__(self, snapshot: Snapshot, job: Job) -> None:
        self._logs: list[tuple[Output, int | None]] = []
        self._by: dict[object, list[int]] = defaultdict(list)
        """Places in that list: by the rank that alone prints there, else by pids and by path."""
        for at, (one, of) in enumerate(with_rank(snapshot.outputs, job)):
            self._logs.append((one, of))
            keys = [(one.node, key) for key in (*one.pids, one.path)]
            for key in keys if of is None else [of]:
                self._by[key].append(at)
        self._read: dict[tuple[int, object, int], str | None] = {}

    def of(
        self, rank: Rank, tells: Callable[[str], object], times: int, since: float = 0.0
    ) -> Again | None:
        """The newest line of a rank that ``tells`` and was printed so many times, but for numbers.

        Args:
            rank: whose log.
            tells: whether a line says what is sought.
            times: how often it has to be there.
            since: when the log must have been written to last, or later.
        """
        names = [(rank.node, key) for key in (rank.process.pid, *rank.process.outputs)]
        for at in sorted({at for key in (rank.rank, *names) for at in self._by.get(key, ())}):
            one, of = self._logs[at]
            if one.changed < since:
                continue
            key = (at, tells, times)
            if key not in self._read:
                self._read[key] = _newest(one.text, tells, times)
            line = self._read[key]
            if line is not None:
                return Again(line, of is not None)
        return None


def _newest(text: str, tells: Callable[[str], object], times: int) -> str | None:
    lines = [line for line in text[-_END:].splitlines() if line.strip()]
    shapes = [_NUMBERS.sub("#", line) for line in lines]
    for line, shape in list(zip(lines, shapes, strict=True))[: -_NEWEST - 1 : -1]:
        if tells(line) and shapes.count(shape) >= times:
            return clean(line, 160)
    return None


def fails_again(line: str) -> bool:
    """Whether a line says that an attempt has failed, which is made again."""
    again = _AGAIN.search(line) is not None and _FAILS.search(line) is not None
    return again or NO_SPACE.search(line) is not None


def in_vain(
    snapshot: Snapshot,
    job: Job,
    activities: Sequence[Activity],
    standings: tuple[Standing, ...],
) -> tuple[Standing, ...]:
    """Return the standings, of ranks that only try again as still as those that wait for them."""
    waiting = [i for i, one in enumerate(activities) if one.kind in COMMUNICATION]
    if not waiting or not snapshot.outputs:
        return standings
    if min(standings[i].still_s for i in waiting) < FLOOR_S:
        return standings
    since = max(standings[i].since for i in waiting)
    found, repeats = list(standings), Repeats(snapshot, job)
    for i, one in enumerate(standings):
        kind = activities[i].kind
        if one.since <= since or kind in COMMUNICATION or kind in GONE or kind == "data":
            continue
        if repeats.of(job.ranks[i], fails_again, _TIMES, since) is not None:
            found[i] = Standing(since, one.seen, False, one.seen)
    return tuple(found)
