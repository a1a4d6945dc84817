"""Inf and nan that ranks have found: as text, and for `hangtop numerics --json`.

The schema is `hangtop.numerics-report/1`; changes to it only ever add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.model.numerics import Frame, Measure, Numerics, earliest
from hangtop_core.report.diagnosis import wrap
from hangtop_core.text.clean import clean, shorten
from hangtop_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA = "hangtop.numerics-report/1"
_WAYS = {
    "forward": "",
    "weights": "  (ahead of the pass)",
    "backward": "  (backward)",
    "step": "  (step of the optimizer)",
}


def document(ranks: Sequence[Numerics]) -> dict[str, Any]:
    """Return everything for programs; `first` has the place in `ranks` of the first finder."""
    first_found = earliest(ranks)
    first = None
    if first_found is not None:
        finder, what = first_found
        first = {"index": list(ranks).index(finder), "rank": finder.rank, **_plain(what)}
        first.pop("frames", None)
    return {
        "schema": SCHEMA,
        "hangtop": __version__,
        "first": first,
        "ranks": [_plain(rank) for rank in ranks],
    }


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def numerics_text(ranks: Sequence[Numerics], width: int = 100, frames: int = 21) -> str:
    """Return the first rank with inf or nan, the findings of each rank, and the calls before."""
    first_found = earliest(ranks)
    lines = [
        "No inf or nan so far."
        if first_found is None
        else f"First: {first_found[0].who}{_on(first_found[0])}: {first_found[1].sentence}"
    ]
    if first_found is not None and first_found[1].site:
        lines.append(f"  called at {first_found[1].site} ({clean(first_found[1].function, 80)})")
    lines.append("")
    for rank in ranks:
        lines += _rank_lines(rank)
    width = max(width, 40)
    lines = [part for line in lines for part in _wrapped(line, width)]
    if first_found is not None:
        finder, first = first_found
        shown = first.frames[-frames:]
        what = "the call" if len(shown) == 1 else f"the last {len(shown)} calls"
        lines += ["", f"{what.capitalize()} on {finder.who}, smallest and largest absolute values:"]
        lines += frame_lines(shown)
    for rank in ranks:
        if rank.traced:
            lines += ["", f"Traced on {rank.who}:", *frame_lines(rank.traced)]
    return "".join(f"{shorten(line, width)}\n" for line in lines)


def _wrapped(line: str, width: int) -> list[str]:
    """Return a sentence in lines, all but the first indented; nothing of it is cut off."""
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(line.lstrip(), width, indent, indent + "  ") if line else [line]


def _on(rank: Numerics) -> str:
    attempt = f", attempt {clean(rank.attempt, 8)}" if rank.attempt not in ("", "0") else ""
    return f" on {clean(rank.node, 60)}{attempt}" if rank.node else attempt


def _rank_lines(rank: Numerics) -> list[str]:
    """Return the lines of one rank: its findings, its progress, and what is missing."""
    lines = [f"{rank.who}{_on(rank)}: {far(rank)}"]
    for first in sorted(rank.firsts, key=lambda first: (first.batch, first.at)):
        site = f", {first.place}" if first.site else ""
        lines.append(f"  {first.kind}: {first.sentence}{site}")
    lines += [f"  {clean(note, 300)}" for note in rank.notes]
    if rank.failure is not None:
        lines.append(f"  {clean(rank.failure, 300)}")
    return lines


def far(rank: Numerics) -> str:
    """Return the progress of a rank in words."""
    kinds = sorted({clean(first.kind, 40) for first in rank.firsts if not first.expected})
    text = f"inf or nan in {', '.join(kinds)}" if kinds else "no inf or nan"
    last = max([rank.seen.batch if rank.seen else -1, *(first.batch for first in rank.firsts)])
    return f"{text}; batch {last} at least was seen" if last >= 0 else text


def frame_lines(frames: Iterable[Frame]) -> list[str]:
    """Return calls with a line per tensor: absolute minimum and maximum, label, shape."""
    lines = []
    for frame in frames:
        site = f"  {frame.place}" if frame.site else ""
        lines.append(f"  batch {frame.batch}  {frame.where}{_WAYS.get(frame.way, '')}{site}")
        lines += [
            f"  {spread(measure)}  {measure.label}  {measure.size}" for measure in frame.measures
        ]
    return lines


def spread(measure: Measure) -> str:
    """Return the absolute minimum and maximum of a tensor, each in ten columns."""
    return f"{_number(measure.low):>10} {_number(measure.high):>10}"


def _number(value: float | str | None) -> str:
    if value is None:
        return "?"
    return clean(value, 10) if isinstance(value, str) else f"{value:.2e}"
