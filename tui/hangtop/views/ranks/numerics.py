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
    numerics = rank.numerics
    title = line(("NUMERICS  ", "title"), rank.name)
    if numerics is None:
        return title, line()
    if numerics.first is None:
        return title, line((far(numerics), "good"))
    return title, line((numerics.first.what, "bad"), f" at batch {numerics.first.batch}")


def numerics_lines(rank: Rank, job: Job | None) -> list[Line]:
    """Return each kind of finding, the first rank of the job with it, and the calls before."""
    numerics = rank.numerics
    if numerics is None:
        return []
    lines = [
        _first(first)
        for first in sorted(numerics.firsts, key=lambda first: (first.batch, first.at))
    ]
    lines += [line((clean(note, 300), "warn")) for note in numerics.notes]
    if numerics.failure:
        lines.append(line((clean(numerics.failure, 300), "warn")))
    reported = (
        [member.numerics for member in job.ranks if member.numerics] if job is not None else []
    )
    first = earliest(reported)
    if first is not None and first[0].rank != numerics.rank:
        lines.append(line(("first of the job: ", "label"), f"{first[0].who}: {first[1].sentence}"))
    lines.append(labelled("file", clean(numerics.path, 300)))
    if numerics.first is not None:
        heading = ("   ABS MIN    ABS MAX  OF THE CALLS BEFORE, THE LAST BELOW", "label")
        lines += [EMPTY, line(heading)]
        for frame in numerics.first.frames:
            lines += frame_lines(frame)
    return lines


def _first(finding: First) -> Line:
    role = "dim" if finding.expected else "bad"
    site = f"  {finding.place}" if finding.site else ""
    return line((f"{finding.kind}: ", "label"), (finding.sentence, role), (site, "link"))


def frame_lines(frame: Frame) -> list[Line]:
    """Return the lines of a call: its module and place, then a line for each tensor."""
    site = f"  {frame.place}" if frame.site else ""
    head = line(
        (frame.where, "bold"),
        (f"  batch {frame.batch}{_WAYS.get(frame.way, '')}", "dim"),
        (site, "link"),
    )
    return [head, *(_measure(measure) for measure in frame.measures)]


def _measure(measure: Measure) -> Line:
    bad = isinstance(measure.high, str)
    return line(
        (spread(measure), "bad" if bad else ""), f"  {measure.label}  ", (measure.size, "dim")
    )
