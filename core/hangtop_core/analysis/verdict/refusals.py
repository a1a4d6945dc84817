"""What logs of ranks that try again say: that a service refuses it, or that no way leads there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.attempts import END, said_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.analysis.attempts import Again
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case

_TIMES = 2
_SLACK_S = 2.0
"""Who prints and then sleeps has printed that long before it is seen to sleep, at most."""
_FAILS = re.compile(
    r"too many requests|service (temporarily )?unavailable|bad gateway|gateway time-?out|slow ?down"
    r"|internal server error|rate.?limit|ThrottlingException|RequestLimitExceeded"
    r"|connection (refused|reset|aborted|timed out|error)|Connection(Refused|Reset|Aborted)?Error"
    r"|(connect|read|request) ?time(d )?-?out|max retries exceeded|failed to establish"
    r"|name or service not known|failure in name resolution|network is unreachable"
    r"|no route to host|DEADLINE_EXCEEDED|StatusCode\.UNAVAILABLE|server disconnected"
    r"|(could not|cannot|can't|unable to|failed to) (connect|reach|resolve)|remote end closed"
    r"|\b(HTTP|status)[^\w\n]{0,3}(code|error)?\W{0,3}(429|5\d\d)\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?<![\d.:/-])(429|50[0234])(?![\d.:/-])")
_AGAIN = re.compile(
    r"\b(retry|retries|retrying|retried|attempts?|try|tries|again|back(ing)?.?off)\b"
)
_TORCH = re.compile(r"c10d|TCPStore|NCCL|[Gg]loo|ProcessGroup|rendezvous|\[rank\d+\]:")
"""Other ranks are no service."""
_ERRNO = re.compile(r"failed to connect to [^\n]{0,120}?\(errno: \d+ - ([A-Z][a-z ]{2,40})\)")


def refusal(case: Case, subject: Subject) -> Again | None:
    """The newest line that tells why a rank tries again, if it printed it more than once."""
    return repeated(case, subject, _tells)


def repeated(case: Case, subject: Subject, tells: Callable[[str], bool]) -> Again | None:
    """The newest line of a rank's log that ``tells``, if it printed it more than once."""
    since = subject.standing.since - _SLACK_S
    return said_again(case.logs.get(id(subject.rank), ()), tells, _TIMES, since)


def _tells(line: str) -> bool:
    if _TORCH.search(line):
        return False
    if _FAILS.search(line):
        return True
    return _CODE.search(line) is not None and _AGAIN.search(line.lower()) is not None


def no_way(case: Case, subject: Subject) -> str:
    """Why torch cannot connect, as it has printed since a rank tries: `No route to host`; or empty.

    A stack follows such a line, so it is none of the newest ones.
    """
    since = subject.standing.since - _SLACK_S
    for log in case.logs.get(id(subject.rank), ()):
        found = _ERRNO.findall(log.output.text[-END:]) if log.output.changed >= since else ()
        if found:
            return str(found[-1])
    return ""
