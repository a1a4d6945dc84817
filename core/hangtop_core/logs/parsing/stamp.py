"""Times of log lines, in the formats that logs of training jobs use.

Times without a zone are local, those without a year are in the year of the reference. All are
seconds since the epoch.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

_ISO = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(r"(?:^|\[)[IWEFCDV](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)[.](\d{1,9})(?=\s)")
"""torch's C++ log (`[E1206 18:44:12.715298746 File.cpp:607]`, the month without a zero in some
releases) and torch.distributed.elastic's Python log (`W1121 11:17:50.738000 24054 torch/...`)."""
_SYSLOG = re.compile(
    r"(?:^|\[)(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?: (\d{4}))?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = re.compile(r"^\[?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?\]?\s")

SEARCHED = 200
"""Characters of a line that are searched for its time."""
SOON = 60
"""Characters that are searched where one time for many lines suffices."""


_SECONDS = re.compile(r"\d\d:\d\d:\d\d")


def is_timed(line: str) -> bool:
    """Whether a line may have a time near its beginning: cheap, and called for every line."""
    return line.count(":", 0, SOON) > 1 and _SECONDS.search(line, 0, SOON) is not None


def stamp(line: str, near: float) -> float | None:
    """Return when a line was printed by its own time, or None.

    Args:
        line: without the prefixes of launchers.
        near: a time shortly after it, for an omitted year or day.
    """
    head = line[:SEARCHED]
    try:
        return _iso(head) or _glog(head, near) or _syslog(head, near) or _clock(head, near)
    except (ValueError, OverflowError, OSError):
        return None


def without_time(line: str) -> str:
    """Return a line without its leading time, if text follows."""
    for pattern in (_ISO, _GLOG, _SYSLOG, _CLOCK):
        match = pattern.match(line, 1 if line.startswith("[") else 0) or pattern.match(line)
        if match is not None:
            return line[match.end() :].lstrip(" \t]|,:-") or line
    return line


def _iso(head: str) -> float | None:
    match = _ISO.search(head)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(text) for text in match.groups()[:6])
    when = datetime(year, month, day, hour, minute, min(second, 59))
    fraction = _fraction(match[7])
    zone = match[8]
    if zone:
        sign = -1 if zone[0] == "-" else 1
        digits = zone[1:].replace(":", "")
        off = timedelta(0)
        if zone != "Z":
            off = sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        return when.replace(tzinfo=timezone(off)).timestamp() + fraction
    return when.timestamp() + fraction


def _glog(head: str, near: float) -> float | None:
    match = _GLOG.search(head)
    if match is None:
        return None
    month, day, hour, minute, second = (int(text) for text in match.groups()[:5])
    return _in_year(near, month, day, hour, minute, second) + _fraction(match[6])


def _syslog(head: str, near: float) -> float | None:
    match = _SYSLOG.search(head)
    if match is None or match[1] not in _MONTHS:
        return None
    month, year = _MONTHS.index(match[1]) + 1, match[6]
    day, hour, minute, second = (int(text) for text in match.groups()[1:5])
    if year:
        return datetime(int(year), month, day, hour, minute, second).timestamp()
    return _in_year(near, month, day, hour, minute, second)


def _clock(head: str, near: float) -> float | None:
    match = _CLOCK.match(head)
    if match is None:
        return None
    hour, minute, second = (int(text) for text in match.groups()[:3])
    when = datetime.fromtimestamp(near).replace(
        hour=hour, minute=minute, second=second, microsecond=0
    )
    at = when.timestamp() + _fraction(match[4])
    return at - 86400 if at > near + 3600 else at


def _in_year(near: float, month: int, day: int, hour: int, minute: int, second: int) -> float:
    """Return the time in the latest year that puts it at most a day after ``near``."""
    year = datetime.fromtimestamp(near).year
    at = datetime(year, month, day, hour, minute, second).timestamp()
    if at > near + 86400:
        at = datetime(year - 1, month, day, hour, minute, second).timestamp()
    return at


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0
