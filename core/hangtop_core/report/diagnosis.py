"""Diagnoses as plain text, for the command line and the clipboard.

No colour codes: these are added where the text is shown. Everything that came from a node has been
through `hangtop_core.text.clean.clean`.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from hangtop_core.judging.past_hangs import MOST_ATTEMPTS
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, duration, plural, shorten
from hangtop_core.text.rank_sets import fold, is_program, names, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.diagnosis import (
        Attempt,
        BlindSpot,
        Culprit,
        Diagnosis,
        Evidence,
        JobSummary,
        Moment,
        Need,
        PastAttempt,
        RequestWait,
        Verdict,
    )

WIDTH = 100
MIN_WIDTH = 40


def confidence_word(confidence: float) -> str:
    """Return a confidence for people: high from 0.85, medium from 0.6, low below."""
    return "high" if confidence >= 0.85 else "medium" if confidence >= 0.6 else "low"


def headline(diagnosis: Diagnosis) -> str:
    """Return the state and a time: `HUNG for 5:12`, `ENDED after hanging 5:12`, `PROGRESSING`."""
    if diagnosis.hung_until_end and diagnosis.ended is not None:
        head = "ENDED" if diagnosis.state == "exited" else "LOST"
        return f"{head} after hanging {duration(diagnosis.ended.after_hanging_s)}"
    if diagnosis.state == "hung" and diagnosis.hung_for_s is not None:
        return f"HUNG for {duration(diagnosis.hung_for_s)}"
    if diagnosis.state == "unknown" and diagnosis.stalled_for_s is not None:
        return f"STALLED for {duration(diagnosis.stalled_for_s)} (not called a hang)"
    if diagnosis.job is None:
        return "NO TRAINING JOB FOUND"
    return diagnosis.state.upper()


def diagnosis_text(diagnosis: Diagnosis, width: int = WIDTH) -> str:
    """Return the whole diagnosis, wrapped to a width in characters."""
    width = max(width, MIN_WIDTH)
    lines = [
        *_state_lines(diagnosis, width),
        *_cause_lines(diagnosis, width),
        *_past_lines(diagnosis, width),
    ]
    for title, section in _sections(diagnosis, width):
        lines += ["", title, *section]
    seconds = duration(diagnosis.observed_for_s)
    lines += ["", f"Observed for {seconds} until {diagnosis.observed_at}."]
    return "\n".join(lines) + "\n"


def _state_lines(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    yield from wrap(f"{headline(diagnosis)}{_job_text(diagnosis.job)}", width)
    if diagnosis.attempt is not None:
        yield from wrap(f"This is {attempt_text(diagnosis.attempt)}.", width)
    if diagnosis.hung_until_end:
        yield from wrap(end_text(diagnosis), width)
    yield from wrap(_watchdog(diagnosis.watchdog_in_s), width)
    if diagnosis.numbers is not None:
        yield from wrap(f"Numbers: {numbers_text(diagnosis.numbers)}.", width)
    if diagnosis.request_waits:
        yield from idle_lines(diagnosis.request_waits, width)


def _cause_lines(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    verdicts = diagnosis.verdicts
    for number, verdict in enumerate(verdicts, 1):
        yield ""
        yield from verdict_lines(verdict, number, len(verdicts), width)
    if not verdicts and (diagnosis.state == "hung" or diagnosis.hung_until_end):
        yield from ("", "No cause could be told.")


def _past_lines(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    for past in reversed(diagnosis.past_attempts):
        yield ""
        yield from wrap(f"Before: {past_attempt_text(past)}.", width)
        for number, verdict in enumerate(past.verdicts, 1):
            yield from verdict_lines(verdict, number, len(past.verdicts), width)
    yield from wrap(unseen_attempts(diagnosis), width)


def _sections(diagnosis: Diagnosis, width: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each list after the causes: its title and its lines."""
    if diagnosis.needs:
        items = [f"{need_text(need)}: {need_state(need)}" for need in diagnosis.needs]
        yield "Asked for", _indented(items, width)
    if diagnosis.ruled_out:
        items = [f"{cause.text}: {cause.looked_at}" for cause in diagnosis.ruled_out]
        yield "Ruled out", _indented(items, width)
    if diagnosis.timeline:
        yield "Timeline", _indented(timeline_lines(diagnosis.timeline), width, " " * 21)
    if diagnosis.blind_spots:
        spots = diagnosis.blind_spots
        yield "Blind spots", [line for spot in spots for line in blind_lines(spot, width)]


def _indented(items: Iterable[str], width: int, hanging: str = "    ") -> list[str]:
    return [line for item in items for line in wrap(item, width, "  ", hanging)]


def idle_parts(waits: Sequence[RequestWait]) -> list[str]:
    """Return `ranks 0-3 by zmq recv at engine.py:13 (loop)`, a text for each way of waiting."""
    groups: dict[str, list[RequestWait]] = defaultdict(list)
    for wait in waits:
        groups[wait.text].append(wait)
    return [f"{_who_waits(members)} by {text}" for text, members in groups.items()]


def _who_waits(waits: Sequence[RequestWait]) -> str:
    ranks = [wait.rank for wait in waits if wait.rank is not None]
    helpers = [clean(wait.who, 60) for wait in waits if wait.rank is None]
    return ", ".join([*([names(ranks)] if ranks else []), *helpers])


def idle_title(waits: Sequence[RequestWait]) -> str:
    """Return that a server has no requests, with the certainty of that."""
    if all(wait.is_proven for wait in waits):
        return "Nobody asks this server for anything."
    return "Most likely nobody asks this server for anything: a request would show it."


def idle_lines(waits: Sequence[RequestWait], width: int) -> list[str]:
    """Return the processes that wait for requests, and how, wrapped to a width in characters."""
    lines = ["", *wrap(f"{idle_title(waits)} These wait for requests:", width)]
    for part in idle_parts(waits):
        lines += wrap(part, width, "  - ", "    ")
    return lines


def attempt_text(attempt: Attempt) -> str:
    """Return `attempt 2 of 6`: the number of starts by a launcher, and their limit."""
    of = f" of {attempt.of}" if attempt.of is not None else ""
    return f"attempt {attempt.number}{of}"


def end_text(diagnosis: Diagnosis) -> str:
    """Return when and by what a hung job ended, and the time of its verdict."""
    ended = diagnosis.ended
    if ended is None:
        return ""
    what = "It ended" if diagnosis.state == "exited" else "It was last seen"
    by = f": {ended.by}" if ended.by else ""
    of = f" The verdict is of {_clock(ended.verdict_at)}." if ended.verdict_at else ""
    return f"{what} at {_clock(ended.at)}{by}.{of}"


def past_attempt_text(past: PastAttempt) -> str:
    """Return `attempt 1 ended after hanging 0:34 at 14:02:11: rank 0 timed out`."""
    which = f"attempt {past.number}" if past.number is not None else "the attempt before"
    hung = past.ended.after_hanging_s
    lasted = f" after hanging {duration(hung)}" if hung is not None else ""
    by = past.ended.by or "what ended it is not known"
    return f"{which} ended{lasted} at {_clock(past.ended.at)}: {by}"


MOST_UNSEEN = 64
"""Maximum number of past attempts that are searched: their number comes from a node."""


def unseen_attempts(diagnosis: Diagnosis) -> str:
    """Return that hangtop saw no rank of some past attempts; empty if it saw all."""
    if diagnosis.attempt is None:
        return ""
    numbers = [past.number for past in diagnosis.past_attempts if past.number is not None]
    number = diagnosis.attempt.number
    first = min(numbers) if len(numbers) >= MOST_ATTEMPTS else 1
    unseen = set(range(max(first, number - MOST_UNSEEN), number)).difference(numbers)
    if not unseen:
        return ""
    which, pronoun = ("attempt", "it") if len(unseen) == 1 else ("attempts", "them")
    return f"What ended {which} {fold(unseen)} is not known: hangtop saw no rank of {pronoun}."


def _clock(at: float) -> str:
    return datetime.fromtimestamp(min(max(at, 0.0), 1e11)).strftime("%H:%M:%S")


def _watchdog(seconds: float | None) -> str:
    """Return when the watchdog ends the job, as an estimate; empty if unknown."""
    if seconds is None:
        return ""
    if seconds <= 0:
        return "By its recorders the first operation should have timed out already."
    return f"By its recorders the first operation times out in about {duration(seconds)}."


def _job_text(job: JobSummary | None) -> str:
    if job is None:
        return ""
    size = f" of {job.world_size}" if job.world_size is not None else ""
    by = f", started by {clean(job.launcher)}" if job.launcher else ""
    where = f" on {shorten(nodesets.fold(job.nodes), 60)}" if job.nodes else ""
    twice = f" ({fold(job.twice)} by more than one process)" if job.twice else ""
    unread = f", {plural(job.unnumbered, 'rank')} that cannot be read" if job.unnumbered else ""
    if job.ranks_seen and all(map(is_program, job.ranks_seen)):
        return f": {names(job.ranks_seen)}{where}"
    return f": {len(job.ranks_seen)}{size} ranks seen{twice}{unread}{where}{by}"


def numbers_text(evidence: Evidence) -> str:
    """Return `rank 1 saw inf in output of layers.2 (Mlp) at batch 3, 4:02 ago`."""
    subject = rank_name(evidence.rank) if evidence.rank is not None else "a process that is no rank"
    return f"{subject} {evidence.text}"


def verdict_lines(verdict: Verdict, number: int, total: int, width: int) -> Iterator[str]:
    """Yield the lines of one verdict, wrapped to a width in characters."""
    of = f"Verdict {number} of {total}" if total > 1 else "Verdict"
    of += " (a fault of its own)" if verdict.apart else ""
    word = confidence_word(verdict.confidence)
    yield f"{of}: {verdict.cause}   confidence {verdict.confidence:.2f} ({word})"
    yield from wrap(verdict.summary, width, "  ")
    if verdict.weaker:
        yield from wrap(f"beside the first: {verdict.weaker}", width, "  ", "    ")
    if verdict.culprits:
        named = [_named(culprit) for culprit in verdict.culprits[:8]]
        more = len(verdict.culprits) - 8
        tail = f" and {more} more" if more > 0 else ""
        yield from wrap(f"to blame: {', '.join(named)}{tail}", width, "  ")
    if verdict.victims:
        yield from wrap(f"waiting:  {fold(verdict.victims)}", width, "  ", "            ")
    if verdict.evidence:
        yield "  Evidence"
        for evidence in verdict.evidence:
            label = f"{evidence.source:<11}"
            rank = f"{rank_name(evidence.rank)}: " if evidence.rank is not None else ""
            yield from wrap(f"{label} {rank}{evidence.text}", width, "    ", " " * 16)
    if verdict.next_steps:
        yield "  What to do"
        for step in verdict.next_steps:
            yield from wrap(step, width, "    - ", "      ")


def need_text(need: Need) -> str:
    """Return `descriptors of rank 3, which would tell who reads the pipe`."""
    subject = (
        f"of {names([need.rank or 0])}" if need.kind != "kernel log" else f"of {clean(need.node)}"
    )
    return f"{need.kind} {subject}, which would tell {need.why}"


def need_state(need: Need) -> str:
    """Return whether evidence has arrived, why it cannot, or what a person has to do for it."""
    if need.state != "needs consent":
        return f"{need.state}: {need.told}" if need.told else need.state
    by = "by hangtop diagnose --allow-pause, " if need.kind == "native stacks" else "by "
    key = f"key {need.key}, or: " if need.key else ""
    return f"touches the rank, so only where you want it: {by}{key}{need.told}"


def timeline_lines(moments: Sequence[Moment]) -> Iterator[str]:
    """Yield `10:29:31 +2:04  rank 3 last got anywhere`: local time, and since the first moment."""
    # A node may send any time.
    moments = [moment for moment in moments if 0 <= moment.at <= 1e11]
    days = {datetime.fromtimestamp(moment.at).date() for moment in moments}
    form = "%H:%M:%S" if len(days) == 1 else "%m-%d %H:%M:%S"
    for moment in moments:
        after = f"+{duration(moment.at - moments[0].at)}"
        yield f"{datetime.fromtimestamp(moment.at).strftime(form)} {after:>8}  {moment.text}"


def _named(culprit: Culprit) -> str:
    return culprit.name


def blind_lines(spot: BlindSpot, width: int) -> Iterator[str]:
    """Yield the lines of one blind spot, wrapped to a width in characters."""
    ranks = f", {names(spot.ranks)}" if spot.ranks else ""
    if spot.what == "ranks":
        ranks = f" {fold(spot.ranks)}"
    nodes = f" ({shorten(nodesets.fold(spot.nodes), 60)})" if spot.nodes else ""
    yield from wrap(f"{spot.what}{ranks}{nodes}: {spot.why}", width, "  ", "    ")
    if spot.fix:
        yield from wrap(f"fix: {spot.fix}", width, "    ", "      ")


def wrap(text: str, width: int, first: str = "", hanging: str | None = None) -> list[str]:
    """Break a text into lines, each with its prefix: ``first``, then ``hanging``.

    No word is broken: a command that is cut in two cannot be copied.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
