"""What asking all ranks to dump their flight recorders would do, and which ranks cannot."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop.terminal.spans import EMPTY, Line, labelled, line
from hangtop_core.analysis.flight.ways import explain
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.model.snapshot import Rank

USABLE = frozenset({"there", "rare", "read", "no-dump"})
"""States of a dump pipe that can be written to: `hangtop_probe.recorder.recorderways`,
`rankrecorder`.
"""


def dump_lines(ranks: Iterable[Rank]) -> tuple[bool, list[Line]]:
    """Return whether any rank may be asked, and the text to show before that, or instead of it."""
    can: list[Rank] = []
    cannot: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        why = _why_not(rank)
        if why is None:
            can.append(rank)
        else:
            cannot[why].append(rank.rank)
    refused = [part for why, refusing in cannot.items() for part in _refused(why, refusing)]
    if not can:
        lead = "A rank dumps when a byte is written to its dump pipe. No rank has one:"
        lines = [line(lead), EMPTY, *refused]
        return False, lines
    subject = f"{plural(len(can), 'rank')} ({clean(fold(rank.rank for rank in can), 200)})"
    return True, [
        line(f"Writes one byte to torch's dump pipe of {subject}."),
        line(
            "A thread of the rank then writes its recorder to a file on its node, over the one "
            "that was there; the rank goes on as before. The file is read and left where it is."
        ),
        line("Ranks that can be read without it are only read."),
        *([EMPTY, *refused] if refused else []),
    ]


def _refused(why: tuple[str, str], ranks: list[int]) -> list[Line]:
    text, fix = why
    lines = [labelled("cannot", line(f"{name_ranks(ranks)}: ", (text, "warn")), 6)]
    return [*lines, labelled("fix", line((fix, "code")), 6)] if fix else lines


def _why_not(rank: Rank) -> tuple[str, str] | None:
    """Return why a rank cannot be asked, and the fix; None where it can, or that is unknown."""
    if rank.ended:
        return "it has exited", ""
    access = rank.recorder.ways if rank.recorder is not None else ()
    pipe = next((path for path in access if path.way == "pipe"), None)
    if pipe is None or pipe.code in USABLE:
        return None
    explanations = [explain(path) for path in access if path.way in ("recorder", "pipe")]
    why, fix = next(
        (explanation for explanation in explanations if explanation[0]), ("its recorder is off", "")
    )
    read = rank.recorder is not None and rank.recorder.trace is not None
    return why, "not needed: it is read another way, by r again" if read else fix
