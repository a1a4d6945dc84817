"""Whether the flight recorders of the ranks on a node can be read while they hang."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.analysis.flight.ways import PREPARE, explain
from hangtop_core.analysis.ladder.rung import Rung, missing, ok, skipped, unreached, warning
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from hangtop_core.model.node.check import Check
    from hangtop_core.model.snapshot import RecorderWay

NAME = "flight recorder"
_BY = {
    "server": "a worker server",
    "debug-server": "a worker server whose port the store should tell",
    "pipe": "a pipe",
    "file": "a dump that was written",
}
_USABLE = {("server", "there"), ("debug-server", "maybe"), ("pipe", "there"), ("file", "there")}


def rung(check: Check) -> Rung:
    """Return the rung of a node."""
    if not check.ranks:
        return skipped(NAME, "no rank runs there")
    ranks = [rank.recorder for rank in check.ranks if rank.recorder]
    if not ranks:
        return unreached(NAME, "the ranks cannot be looked into")
    count = plural(len(ranks), "rank")
    off = [one for ways in ranks for one in ways if _is_off(one)]
    best = Counter(_best(ways) for ways in ranks)
    if off and not best["server"]:
        why, fix = explain(off[0])
        return missing(NAME, f"{len(off)} of {count}: {why}", fix)
    if best[None]:
        ways = next(ways for ways in ranks if _best(ways) is None)
        reasons = [explain(one)[0] for one in ways if one.way in ("pipe", "server")]
        text = f"{best[None]} of {count} cannot be asked while hanging: "
        return warning(NAME, text + "; ".join(filter(None, reasons)), PREPARE)
    by = ", ".join(words for way, words in _BY.items() if best[way])
    return ok(NAME, f"readable by {by}", count)


def _is_off(way: RecorderWay) -> bool:
    return way.way == "recorder" and way.code.startswith("off")


def _best(ways: tuple[RecorderWay, ...]) -> str | None:
    """The best way to a recorder: one that answers now, before one that was written once."""
    usable = {one.way for one in ways if (one.way, one.code) in _USABLE}
    return next((way for way in _BY if way in usable), None)
