"""Lines that the log of a rank has again and again, and those that tell of attempts that fail.

Lines that are equal but for numbers, and say that an attempt has failed, are no progress.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.standing import GONE, Standing
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.logs.reading.of_jobs import with_rank
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.model.output import Output
    from hangtop_core.model.snapshot import Job, Snapshot

END = 16_384
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


class Log(NamedTuple):
    """A file that a rank prints to."""

    output: Output
    own: bool
    """Whether this rank alone prints to it."""


def logs_of(snapshot: Snapshot, job: Job) -> dict[int, list[Log]]:
    """The files that each rank of a job prints to, by its id(), as far as they were read."""
    found: dict[int, list[Log]] = defaultdict(list)
    if not snapshot.outputs:
        return found
    whose: dict[object, list[int]] = defaultdict(list)
    for rank in job.ranks:
        for key in (rank.rank, (rank.node, rank.process.pid)):
            whose[key].append(id(rank))
        for path in rank.process.outputs:
            whose[rank.node, path].append(id(rank))
    for one, number in with_rank(snapshot.outputs, job):
        keys = [(one.node, key) for key in (one.path, *one.pids)] if number is None else [number]
        for of in {of for key in keys for of in whose.get(key, ())}:
            found[of].append(Log(one, number is not None))
    return found


@lru_cache(maxsize=64)
def _newest(text: str) -> tuple[tuple[str, int], ...]:
    """The newest lines of a log, the last one first, and how often each is there."""
    lines = [line for line in text[-END:].splitlines() if line.strip()]
    shapes = [_NUMBERS.sub("#", line) for line in lines]
    times = Counter(shapes)
    newest = list(zip(lines, shapes, strict=True))[: -_NEWEST - 1 : -1]
    return tuple((line, times[shape]) for line, shape in newest)


def said_again(
    logs: Iterable[Log], tells: Callable[[str], object], times: int, since: float = 0.0
) -> Again | None:
    """The newest line of a rank that ``tells`` and was printed so many times, but for numbers.

    Args:
        logs: of the rank.
        tells: whether a line says what is sought.
        times: how often it has to be there.
        since: when the log must have been written to last, or later.
    """
    for log in logs:
        for line, count in _newest(log.output.text) if log.output.changed >= since else ():
            if count >= times and tells(line):
                return Again(clean(line, 160), log.own)
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
    if min(standings[i].still_s for i in waiting) < STALLED_AFTER_S:
        return standings
    since = max(standings[i].since for i in waiting)
    logs = logs_of(snapshot, job)
    found = list(standings)
    for i, one in enumerate(standings):
        kind = activities[i].kind
        if one.since <= since or kind in COMMUNICATION or kind in GONE or kind == "data":
            continue
        own = logs.get(id(job.ranks[i]), ())
        if said_again(own, fails_again, _TIMES, since) is not None:
            found[i] = Standing(since, one.seen, False, one.seen)
    return tuple(found)
