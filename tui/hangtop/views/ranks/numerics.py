"""The numerics pane: the first inf or nan of a rank, and the values of the calls before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import EMPTY, Line, labelled, line
from hangtop_core.model.numerics import earliest
from hangtop_core.report.numerics import far, spread
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.model.numerics import First, Frame, Measure
    from hangtop_core.model.snapshot import Job, Rank

_WAYS = {
    "weights": "  ahead of the pass",
    "backward": "  backward",
    "step": "  step of the optimizer",
}


def has_numerics(rank: Rank | None) -> bool:
    """Return whether a rank looks for inf and nan, and has reported."""
    return rank is not None and rank.numerics is not None and bool(rank.numerics.path)


def numerics_title(rank: Rank) -> tuple[Line, Line]:
    """Return title and note of the pane."""
    told = rank.numerics
    title = line(("NUMERICS  ", "title"), rank.name)
    if told is None:
        return title, line()
    if told.first is None:
        return title, line((far(told), "good"))
    return title, line((told.first.what, "bad"), f" at batch {told.first.batch}")


def numerics_lines(rank: Rank, job: Job | None) -> list[Line]:
    """Return each kind of finding, the first rank of the job with it, and the calls before."""
    told = rank.numerics
    if told is None:
        return []
    lines = [_first(one) for one in sorted(told.firsts, key=lambda one: (one.batch, one.at))]
    lines += [line((clean(note, 300), "warn")) for note in told.notes]
    if told.failure:
        lines.append(line((clean(told.failure, 300), "warn")))
    known = [one.numerics for one in job.ranks if one.numerics] if job is not None else []
    first = earliest(known)
    if first is not None and first[0].rank != told.rank:
        lines.append(line(("first of the job: ", "label"), f"{first[0].who}: {first[1].sentence}"))
    lines.append(labelled("file", clean(told.path, 300)))
    if told.first is not None:
        heading = ("   ABS MIN    ABS MAX  OF THE CALLS BEFORE, THE LAST BELOW", "label")
        lines += [EMPTY, line(heading)]
        for frame in told.first.frames:
            lines += frame_lines(frame)
    return lines


def _first(one: First) -> Line:
    role = "dim" if one.expected else "bad"
    site = f"  {one.place}" if one.site else ""
    return line((f"{one.kind}: ", "label"), (one.sentence, role), (site, "link"))


def frame_lines(frame: Frame) -> list[Line]:
    """Return the lines of a call: its module and place, then a line for each tensor."""
    site = f"  {frame.place}" if frame.site else ""
    head = line(
        (frame.where, "bold"),
        (f"  batch {frame.batch}{_WAYS.get(frame.way, '')}", "dim"),
        (site, "link"),
    )
    return [head, *(_measure(one) for one in frame.measures)]


def _measure(one: Measure) -> Line:
    bad = isinstance(one.high, str)
    return line((spread(one), "bad" if bad else ""), f"  {one.label}  ", (one.size, "dim"))
