"""What ranks have found that is not finite: as text, and as `hangtop numerics --json` prints it.

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
    """Return everything for programs; `first` has the place in `ranks` of who was first."""
    found = earliest(ranks)
    first = None
    if found is not None:
        who, what = found
        first = {"index": list(ranks).index(who), "rank": who.rank, **_plain(what)}
        first.pop("frames", None)
    return {
        "schema": SCHEMA,
        "hangtop": __version__,
        "first": first,
        "ranks": [_plain(one) for one in ranks],
    }


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def numerics_text(ranks: Sequence[Numerics], width: int = 100, frames: int = 21) -> str:
    """Return who was first, what each rank has found, and the calls before the first."""
    found = earliest(ranks)
    lines = [
        "No inf or nan so far."
        if found is None
        else f"First: {found[0].who}{_on(found[0])}: {found[1].sentence}"
    ]
    if found is not None and found[1].site:
        lines.append(f"  called at {found[1].site} ({clean(found[1].function, 80)})")
    lines.append("")
    for one in ranks:
        lines += _rank_lines(one)
    width = max(width, 40)
    lines = [part for line in lines for part in _wrapped(line, width)]
    if found is not None:
        who, first = found
        shown = first.frames[-frames:]
        what = "the call" if len(shown) == 1 else f"the last {len(shown)} calls"
        lines += ["", f"{what.capitalize()} on {who.who}, smallest and largest absolute values:"]
        lines += frame_lines(shown)
    for one in ranks:
        if one.traced:
            lines += ["", f"Traced on {one.who}:", *frame_lines(one.traced)]
    return "".join(f"{shorten(line, width)}\n" for line in lines)


def _wrapped(line: str, width: int) -> list[str]:
    """A sentence in lines, all but the first indented; nothing of it is cut off."""
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(line.lstrip(), width, indent, indent + "  ") if line else [line]


def _on(one: Numerics) -> str:
    attempt = f", attempt {clean(one.attempt, 8)}" if one.attempt not in ("", "0") else ""
    return f" on {clean(one.node, 60)}{attempt}" if one.node else attempt


def _rank_lines(one: Numerics) -> list[str]:
    """One rank: each kind it has found, how far it is, and what lacks."""
    lines = [f"{one.who}{_on(one)}: {far(one)}"]
    for first in sorted(one.firsts, key=lambda first: (first.batch, first.at)):
        site = f", {first.place}" if first.site else ""
        lines.append(f"  {first.kind}: {first.sentence}{site}")
    lines += [f"  {clean(note, 300)}" for note in one.notes]
    if one.failure is not None:
        lines.append(f"  {clean(one.failure, 300)}")
    return lines


def far(one: Numerics) -> str:
    """How far a rank has come, in words."""
    kinds = sorted({clean(first.kind, 40) for first in one.firsts if not first.expected})
    found = f"inf or nan in {', '.join(kinds)}" if kinds else "no inf or nan"
    last = max([one.seen.batch if one.seen else -1, *(first.batch for first in one.firsts)])
    return f"{found}; batch {last} at least was seen" if last >= 0 else found


def frame_lines(frames: Iterable[Frame]) -> list[str]:
    """Calls with a line for each tensor: absolute minimum and maximum, which one, its shape."""
    lines = []
    for frame in frames:
        site = f"  {frame.place}" if frame.site else ""
        lines.append(f"  batch {frame.batch}  {frame.where}{_WAYS.get(frame.way, '')}{site}")
        lines += [f"  {spread(one)}  {one.label}  {one.size}" for one in frame.measures]
    return lines


def spread(one: Measure) -> str:
    """Absolute minimum and maximum of a tensor, each in ten columns."""
    return f"{_number(one.low):>10} {_number(one.high):>10}"


def _number(value: float | str | None) -> str:
    if value is None:
        return "?"
    return clean(value, 10) if isinstance(value, str) else f"{value:.2e}"
