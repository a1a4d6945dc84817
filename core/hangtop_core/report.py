"""Diagnoses and stacks as plain text: what the command line prints and screens copy.

No colour codes: colour is the business of whoever shows it. Everything that came from a node has
been through `hangtop_core.text.clean`.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from hangtop_core import nodesets
from hangtop_core.analysis.frames import place
from hangtop_core.analysis.layout import absent
from hangtop_core.analysis.stacks import Merged, Row, flatten
from hangtop_core.pasthangs import MOST_ATTEMPTS
from hangtop_core.rankset import fold, is_program, names, rank_label, rank_name
from hangtop_core.text import clean, duration, plural, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    from hangtop_core.model import Frame, Job, Rank, Snapshot, StackSample

WIDTH = 100
_MIN_WIDTH = 40


def confidence_word(confidence: float) -> str:
    """Confidence for people: high from 0.85, medium from 0.6, low below."""
    return "high" if confidence >= 0.85 else "medium" if confidence >= 0.6 else "low"


def headline(diagnosis: Diagnosis) -> str:
    """`HUNG for 5:12`, `ENDED after hanging 5:12`, `PROGRESSING`: the state and a time."""
    if diagnosis.hung_until_end and diagnosis.ended is not None:
        seen = "ENDED" if diagnosis.state == "exited" else "LOST"
        return f"{seen} after hanging {duration(diagnosis.ended.after_hanging_s)}"
    if diagnosis.state == "hung" and diagnosis.hung_for_s is not None:
        return f"HUNG for {duration(diagnosis.hung_for_s)}"
    if diagnosis.state == "unknown" and diagnosis.stalled_for_s is not None:
        return f"STALLED for {duration(diagnosis.stalled_for_s)} (not called a hang)"
    if diagnosis.job is None:
        return "NO TRAINING JOB FOUND"
    return diagnosis.state.upper()


def diagnosis_text(diagnosis: Diagnosis, width: int = WIDTH) -> str:
    """The whole diagnosis, wrapped to a width in characters."""
    width = max(width, _MIN_WIDTH)
    lines = list(wrap(f"{headline(diagnosis)}{_job_text(diagnosis.job)}", width))
    if diagnosis.attempt is not None:
        lines += wrap(f"This is {attempt_text(diagnosis.attempt)}.", width)
    if diagnosis.hung_until_end:
        lines += wrap(end_text(diagnosis), width)
    lines += wrap(_watchdog(diagnosis.watchdog_in_s), width)
    if diagnosis.numbers is not None:
        lines += wrap(f"Numbers: {numbers_text(diagnosis.numbers)}.", width)
    if diagnosis.request_waits:
        lines += idle_lines(diagnosis.request_waits, width)
    for number, verdict in enumerate(diagnosis.verdicts, 1):
        lines += ["", *verdict_lines(verdict, number, len(diagnosis.verdicts), width)]
    if (diagnosis.state == "hung" or diagnosis.hung_until_end) and not diagnosis.verdicts:
        lines += ["", "No cause could be told."]
    for past in reversed(diagnosis.past_attempts):
        lines += ["", *wrap(f"Before: {past_attempt_text(past)}.", width)]
        for number, verdict in enumerate(past.verdicts, 1):
            lines += verdict_lines(verdict, number, len(past.verdicts), width)
    lines += wrap(unseen_attempts(diagnosis), width)
    if diagnosis.needs:
        lines += ["", "Asked for"]
        for need in diagnosis.needs:
            lines += wrap(f"{need_text(need)}: {need_state(need)}", width, "  ", "    ")
    if diagnosis.ruled_out:
        lines += ["", "Ruled out"]
        for out in diagnosis.ruled_out:
            lines += wrap(f"{out.text}: {out.looked_at}", width, "  ", "    ")
    if diagnosis.timeline:
        lines += ["", "Timeline"]
        for text in timeline_lines(diagnosis.timeline):
            lines += wrap(text, width, "  ", " " * 21)
    if diagnosis.blind_spots:
        lines += ["", "Blind spots"]
        for spot in diagnosis.blind_spots:
            lines += blind_lines(spot, width)
    seconds = duration(diagnosis.observed_for_s)
    lines += ["", f"Observed for {seconds} until {diagnosis.observed_at}."]
    return "\n".join(lines) + "\n"


def idle_text(waits: Sequence[RequestWait]) -> str:
    """`ranks 0-3 by zmq recv at engine.py:13 (loop); api_server.py by an event loop at ...`."""
    groups: dict[str, list[RequestWait]] = defaultdict(list)
    for one in waits:
        groups[one.text].append(one)
    return "; ".join(f"{_who_waits(some)} by {text}" for text, some in groups.items())


def _who_waits(waits: Sequence[RequestWait]) -> str:
    ranks = [one.rank for one in waits if one.rank is not None]
    others = [clean(one.who, 60) for one in waits if one.rank is None]
    return ", ".join([*([names(ranks)] if ranks else []), *others])


def idle_lines(waits: Sequence[RequestWait], width: int) -> list[str]:
    """Who waits for requests and by what, wrapped to a width in characters."""
    lines = ["", "Nobody asks it for anything. These wait for requests:"]
    for part in idle_text(waits).split("; "):
        lines += wrap(part, width, "  - ", "    ")
    return lines


def attempt_text(attempt: Attempt) -> str:
    """`attempt 2 of 6`: how often a launcher has started a job, and will."""
    of = f" of {attempt.of}" if attempt.of is not None else ""
    return f"attempt {attempt.number}{of}"


def end_text(diagnosis: Diagnosis) -> str:
    """When a job ended that hung until then, and by what; since when its verdict stands."""
    ended = diagnosis.ended
    if ended is None:
        return ""
    what = "It ended" if diagnosis.state == "exited" else "It was last seen"
    by = f": {ended.by}" if ended.by else ""
    of = f" The verdict is of {_clock(ended.verdict_at)}." if ended.verdict_at else ""
    return f"{what} at {_clock(ended.at)}{by}.{of}"


def past_attempt_text(past: PastAttempt) -> str:
    """`attempt 1 ended after hanging 0:34 at 14:02:11: rank 0 timed out`."""
    which = f"attempt {past.number}" if past.number is not None else "the attempt before"
    hung = past.ended.after_hanging_s
    lasted = f" after hanging {duration(hung)}" if hung is not None else ""
    by = past.ended.by or "what ended it is not known"
    return f"{which} ended{lasted} at {_clock(past.ended.at)}: {by}"


MOST_UNSEEN = 64
"""Attempts before the present one that are looked for: a node says how many there were."""


def unseen_attempts(diagnosis: Diagnosis) -> str:
    """`What ended attempt 1 is not known: hangtop saw no rank of it.` Empty where it saw all."""
    if diagnosis.attempt is None:
        return ""
    seen = [past.number for past in diagnosis.past_attempts if past.number is not None]
    number = diagnosis.attempt.number
    first = min(seen) if len(seen) >= MOST_ATTEMPTS else 1
    unseen = set(range(max(first, number - MOST_UNSEEN), number)).difference(seen)
    if not unseen:
        return ""
    which, whose = ("attempt", "it") if len(unseen) == 1 else ("attempts", "them")
    return f"What ended {which} {fold(unseen)} is not known: hangtop saw no rank of {whose}."


def _clock(at: float) -> str:
    return datetime.fromtimestamp(min(max(at, 0.0), 1e11)).strftime("%H:%M:%S")


def _watchdog(seconds: float | None) -> str:
    """When the job ends by itself, as an estimate; empty where that is not known."""
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


def numbers_text(seen: Evidence) -> str:
    """`rank 1 saw inf in output of layers.2 (Mlp) at batch 3, 4:02 ago`."""
    whose = rank_name(seen.rank) if seen.rank is not None else "a process that is no rank"
    return f"{whose} {seen.text}"


def verdict_lines(verdict: Verdict, number: int, total: int, width: int) -> Iterator[str]:
    """One verdict, wrapped to a width in characters."""
    of = f"Verdict {number} of {total}" if total > 1 else "Verdict"
    of += " (a fault of its own)" if verdict.apart else ""
    word = confidence_word(verdict.confidence)
    yield f"{of}: {verdict.cause}   confidence {verdict.confidence:.2f} ({word})"
    yield from wrap(verdict.summary, width, "  ")
    if verdict.weaker:
        yield from wrap(f"beside the first: {verdict.weaker}", width, "  ", "    ")
    if verdict.culprits:
        named = [_named(one) for one in verdict.culprits[:8]]
        more = len(verdict.culprits) - 8
        rest = f" and {more} more" if more > 0 else ""
        yield from wrap(f"to blame: {', '.join(named)}{rest}", width, "  ")
    if verdict.victims:
        yield from wrap(f"waiting:  {fold(verdict.victims)}", width, "  ", "            ")
    if verdict.evidence:
        yield "  Evidence"
        for one in verdict.evidence:
            label = f"{one.source:<11}"
            rank = f"{rank_name(one.rank)}: " if one.rank is not None else ""
            yield from wrap(f"{label} {rank}{one.text}", width, "    ", " " * 16)
    if verdict.next_steps:
        yield "  What to do"
        for step in verdict.next_steps:
            yield from wrap(step, width, "    - ", "      ")


def need_text(need: Need) -> str:
    """`descriptors of rank 3, which would tell who reads the pipe`."""
    whose = (
        f"of {names([need.rank or 0])}" if need.kind != "kernel log" else f"of {clean(need.node)}"
    )
    return f"{need.kind} {whose}, which would tell {need.why}"


def need_state(need: Need) -> str:
    """Whether it has come, why it cannot, or what a person has to do for it."""
    if need.state != "needs consent":
        return f"{need.state}: {need.told}" if need.told else need.state
    by = "by hangtop diagnose --allow-pause, " if need.kind == "native stacks" else "by "
    key = f"key {need.key}, or: " if need.key else ""
    return f"touches the rank, so only where you want it: {by}{key}{need.told}"


def timeline_lines(moments: Sequence[Moment]) -> Iterator[str]:
    """`10:29:31 +2:04  rank 3 last got anywhere`: local time, and since the first moment."""
    # A node may tell any time.
    moments = [one for one in moments if 0 <= one.at <= 1e11]
    days = {datetime.fromtimestamp(one.at).date() for one in moments}
    form = "%H:%M:%S" if len(days) == 1 else "%m-%d %H:%M:%S"
    for one in moments:
        after = f"+{duration(one.at - moments[0].at)}"
        yield f"{datetime.fromtimestamp(one.at).strftime(form)} {after:>8}  {one.text}"


def _named(one: Culprit) -> str:
    return one.name


def blind_lines(spot: BlindSpot, width: int) -> Iterator[str]:
    """One blind spot, wrapped to a width in characters."""
    ranks = f", {names(spot.ranks)}" if spot.ranks else ""
    if spot.what == "ranks":
        ranks = f" {fold(spot.ranks)}"
    nodes = f" ({shorten(nodesets.fold(spot.nodes), 60)})" if spot.nodes else ""
    yield from wrap(f"{spot.what}{ranks}{nodes}: {spot.why}", width, "  ", "    ")
    if spot.fix:
        yield from wrap(f"fix: {spot.fix}", width, "    ", "      ")


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Break a text into lines, the first and the others each with what stands before them.

    No word is broken: a command that is cut in two cannot be copied.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def frame_text(frame: Frame) -> str:
    """`all_reduce (torch/distributed/distributed_c10d.py:2810)`, as py-spy writes a frame."""
    name = clean(frame.name, 120)
    return f"{name} ({clean(place(frame), 160)})" if frame.file else name


def merged_text(
    merged: Merged,
    width: int = WIDTH,
    *,
    job: Job | None = None,
    whole: bool = False,
    ascii_only: bool = False,
) -> str:
    """The merged tree: count, share and age of every frame, ranks where they change.

    With ``job``, and where it has several nodes, the nodes of these ranks, too; where it is the
    ``whole`` job, also which of its ranks were not found.
    """
    width = max(width, _MIN_WIDTH)
    nodes: dict[int, set[str]] = defaultdict(set)
    for rank in job.ranks if job is not None and len(job.nodes) > 1 else ():
        nodes[rank.rank].add(rank.node)
    sampled = sum(len(one.ranks) for one in merged.classes)
    lacking = _not_found(job) if job is not None and whole else ()
    total = merged.total + len(lacking) + (len(job.unnumbered) if job is not None else 0)
    head = f"{plural(sampled, 'rank')} of {total} gave a stack, "
    head += plural(len(merged.classes), "class", "classes")
    lines = [head]
    if merged.roots:
        lines += ["", f"{'RANKS':>6} {'%':>5} {'AGE':>6}  FRAME"]
        lines += [_row_line(row, merged.at, width, ascii_only, nodes) for row in flatten(merged)]
    for one in merged.missing:
        fix = f" (fix: {one.fix})" if one.fix else ""
        on = shorten(nodesets.fold(one.nodes), 60)
        text = f"no stack from {fold(one.ranks)} ({on}): {one.why}{fix}"
        lines += ["", *wrap(clean(text, 600), width)]
    if lacking and job is not None:
        lines += ["", f"no process was found of {names(lacking)}: WORLD_SIZE is {job.world_size}"]
    return "\n".join(lines) + "\n"


def _not_found(job: Job) -> tuple[int, ...]:
    """Ranks of the world that nothing was seen of; none where the number of some is unknown."""
    return () if job.unnumbered else absent(job)


def _lead(row: Row, ascii_only: bool) -> str:
    """The guides left of a row."""
    bar, tee, end = ("| ", "|-", "`-") if ascii_only else ("│ ", "├ ", "└ ")
    if not row.more:
        return ""
    last = row.more[-1]
    own = (tee if last else end) if row.first else (bar if last else "  ")
    return "".join(bar if more else "  " for more in row.more[:-1]) + own


def _row_line(
    row: Row, at: float, width: int, ascii_only: bool, nodes: Mapping[int, Iterable[str]]
) -> str:
    age = duration(at - row.since) if row.since is not None and at >= row.since else "?"
    text = frame_text(row.frame)
    if row.hidden:
        text += f" {'...' if ascii_only else '…'} {plural(row.hidden, 'frame')}"
    line = f"{row.count:>6} {row.share:>5.0%} {age:>6}  {_lead(row, ascii_only)}{text}"
    if not row.ranks:
        return shorten(line, width)
    mark = ("  <fewest" if ascii_only else "  ◀ fewest") if row.fewest else ""
    who = f"  [{shorten(row.ranks, 40)}]"
    if nodes:
        on = nodesets.fold({name for rank in row.members for name in nodes.get(rank, ())})
        who += f" {shorten(on, 40)}"
    # Who is there is what a row is for: a long frame gives way to it.
    room = max(width - len(who) - len(mark), _MIN_WIDTH)
    return shorten(f"{shorten(line, room)}{who}{mark}", width)


def each_text(snapshot: Snapshot, job: Job, *, children: bool = False) -> str:
    """Every rank's stacks one after the other, innermost frame first, as `py-spy dump` does.

    Each begins with `node:rank`, as logs of launchers often do.

    Args:
        snapshot: where the stacks are.
        job: whose ranks, and controllers.
        children: also the sampled children of each rank.
    """
    blocks = []
    for rank in job.members:
        blocks.append(_rank_text(snapshot, rank))
        if children:
            for child in rank.children:
                sample = rank.child_samples.get(child.pid)
                at = f"{clean(rank.node)}:{rank_label(rank.rank)}"
                title = f"  {at}  {clean(child.label)}, process {child.pid}"
                if sample is not None:
                    body = "\n".join(sample_lines(snapshot, sample))
                    blocks.append(f"{title}\n{textwrap.indent(body, '  ')}")
    return "\n\n".join(blocks) + "\n" if blocks else ""


def controllers_text(snapshot: Snapshot, job: Job) -> str:
    """The stacks of the controllers of a job, one after the other."""
    blocks = [_rank_text(snapshot, one) for one in job.controllers]
    return "".join(f"\n{block}\n" for block in blocks)


def _rank_text(snapshot: Snapshot, rank: Rank) -> str:
    process = rank.process
    command = clean(" ".join(process.cmdline), 200)
    lines = [
        f"{clean(rank.node)}:{rank_label(rank.rank)}  process {process.pid}: {command}",
        f"State {rank.state}",
    ]
    if rank.sample is None:
        why = process.denied or ("the process is gone" if rank.state == "exited" else None)
        lines.append(f"No stack: {clean(why or 'not sampled yet')}")
    else:
        lines += sample_lines(snapshot, rank.sample)
    return "\n".join(lines)


def sample_lines(
    snapshot: Snapshot, sample: StackSample, *, with_locals: bool = True
) -> Iterator[str]:
    """The threads of one sample, innermost frame first; with the variables that were read."""
    if sample.failure is not None:
        fix = f" (fix: {clean(sample.failure.fix)})" if sample.failure.fix else ""
        yield f"No stack: {clean(sample.failure.text)}{fix}"
        return
    for thread in sample.threads:
        marks = ["active" if thread.active else "idle"] + ["gil"] * thread.gil
        name = clean(thread.name or "?", 80)
        yield f'Thread {thread.tid} ({"+".join(marks)}): "{name}"'
        for depth, frame in enumerate(snapshot.stacks.get(thread.stack, ())):
            yield f"    {frame_text(frame)}"
            for local in thread.locals[depth] if with_locals and depth < len(thread.locals) else ():
                yield f"        {clean(local.name, 80)}: {clean(local.value, 160)}"
