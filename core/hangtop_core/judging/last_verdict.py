"""The last verdict on a hang, combined with the end of its job."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from hangtop_core.diagnosis import Moment
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.diagnosis import BlindSpot, Diagnosis, Ended, Verdict
    from hangtop_core.jobs.following import Identity

LATER = "it shows how the job ended, after it had hung"
"""Reason why a verdict on the end is ranked after those on the hang."""
_ASKS = re.compile(
    r"\b(?:hangtop (?:dump|capture|strace|files|flight|debug|diagnose)|py-spy|strace|gdb|kill"
    r"|nsenter)\b"
    r"|(?:^|\s)(?:-p|-t|--pid)[ =]\d|/proc/\d|\bpid[ =]\d"
)
"""Advice that needs a process of the job."""


class Hang(NamedTuple):
    """The last verdict on a hang, with the state of the job at that time."""

    diagnosis: Diagnosis
    at: float
    since: float
    gone: frozenset[Identity]
    """Ranks that had left by then; a rank that leaves later may leave because of the hang."""


def outlived(hang: Hang, now: Diagnosis, ended: Ended) -> Diagnosis:
    """Return the diagnosis of a job that hung until its end.

    Args:
        hang: the last verdict on the hang.
        now: the diagnosis of the remains of the job.
        ended: when and by what it ended.
    """
    hung, at = hang.diagnosis, max(ended.at, hang.at)
    lasted = round(max(at - hang.since, 0.0), 1)
    ended = replace(ended, at=round(at, 3), after_hanging_s=lasted, verdict_at=round(hang.at, 3))
    return replace(
        now,
        state=now.state if now.state == "exited" else "unknown",
        hung_for_s=None,
        stalled_for_s=None,
        watchdog_in_s=None,
        ended=ended,
        verdicts=_both(hung.verdicts, now.verdicts if now.state == "exited" else ()),
        ruled_out=hung.ruled_out,
        timeline=_timeline(hung, now, ended),
        blind_spots=_spots([*now.blind_spots, *hung.blind_spots]),
        numbers=now.numbers or hung.numbers,
    )


def _both(hung: tuple[Verdict, ...], now: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """Return the verdicts on a hang, then the verdicts on the end that add a cause."""
    kept = tuple(map(_still_possible, hung))
    gists = {_gist(verdict) for verdict in hung}
    news = (item for item in now if _gist(item) not in gists)
    later = tuple(replace(item, weaker=item.weaker or LATER) for item in news)
    if kept and kept[0].cause != "unknown":
        return (*kept, *later)
    return (replace(later[0], weaker=""), *later[1:]) if later else kept


def _gist(verdict: Verdict) -> tuple[object, ...]:
    return verdict.cause, frozenset((culprit.rank, culprit.node) for culprit in verdict.culprits)


def _still_possible(verdict: Verdict) -> Verdict:
    """Return a verdict whose next steps need no process of the job."""
    steps = zip_longest(verdict.next_steps, verdict.commands, fillvalue="")
    kept = [(step, command) for step, command in steps if _ASKS.search(step) is None]
    texts, commands = tuple(step for step, _ in kept), tuple(command for _, command in kept)
    return replace(verdict, next_steps=texts, commands=commands if verdict.commands else ())


def _timeline(hung: Diagnosis, now: Diagnosis, ended: Ended) -> tuple[Moment, ...]:
    """Return the moments around the verdict and the end, without those that are still due."""
    text = clean(f"the job ended{f': {ended.by}' if ended.by else ''}", 300)
    if now.state != "exited":
        text = "the job was last seen"
    moments = (*hung.timeline, *now.timeline, Moment(ended.at, "left", None, text))
    past = (moment for moment in moments if moment.at <= ended.at + 60.0 and moment.kind != "due")
    unique = {(moment.kind, moment.rank, moment.text): moment for moment in past}
    return tuple(sorted(unique.values(), key=lambda moment: moment.at))


def _spots(spots: Sequence[BlindSpot]) -> tuple[BlindSpot, ...]:
    """Return distinct blind spots, without remedies that need a process of the job."""
    each = {(spot.what, spot.why): spot for spot in spots}.values()
    return tuple(
        replace(spot, fix="", command="") if _ASKS.search(spot.fix) else spot for spot in each
    )
