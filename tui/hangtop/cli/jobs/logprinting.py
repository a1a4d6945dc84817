"""What `hangtop logs` prints: the report on logs, or chosen lines with their ranks."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from hangtop.cli.output import redacting
from hangtop.cli.output.output import coloured, width
from hangtop_core.diagnosis import to_json
from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.reading.lines import Choice, Kept, Shown
from hangtop_core.model.file_log import FileLog
from hangtop_core.report.logs import document, logs_text
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Sequence

    from hangtop.cli.output.redacting import Renamer

SHOWN_LABELS = 12
"""Of those whose lines there are, where none was wanted."""
NO_MATCH = 1
"""Exit status where there are lines, and none of those that are wanted."""
_DIGITS = re.compile(r"(\d{1,9})")


def renamer(arguments: argparse.Namespace, files: Sequence[FileLog]) -> Renamer:
    """Other names where they are asked for, also for the nodes that these logs tell of."""
    found = redacting.of(arguments)
    found.learn_hosts(one.place.node for one in files)
    found.learn_hosts(s.origin.node for one in files for s in one.streams)
    return found


def report(
    files: Sequence[FileLog],
    arguments: argparse.Namespace,
    alive: Collection[int | None] = (),
    more: str = "--all reads it",
    finished: Collection[int] = (),
) -> int:
    """Print what logs say, of a job of which these ranks live; returns the exit status.

    ``more`` says how to read what was not read; ``finished`` ranks left without an error.
    """
    files = renamer(arguments, files).several(list(files), FileLog)
    judged = judge(files, alive=alive, finished=finished)
    verdicts = conclude(judged)
    if arguments.json:
        print(to_json(document(judged, verdicts, files)).decode())
    else:
        print(coloured(logs_text(judged, verdicts, files, min(width(), 120), more)), end="")
    if judged.first is None:
        return 0
    return 10 if any(one.cause != "unknown" for one in verdicts) else 11


def print_kept(kept: Kept, files: Sequence[FileLog], choice: Choice, names_of: Renamer) -> int:
    """Print the lines that are wanted; returns the exit status: as of grep, 1 where none is."""
    if print_lines(kept.shown(files, choice), names_of):
        return 0
    print("hangtop: no such line", file=sys.stderr)
    some = kept.shown(files, Choice()) if choice.ranks is not None or choice.node else ()
    known = sorted({_label(one, names_of) for one in some if one.owner != "-"}, key=_by_number)
    if known:
        more = f" and {len(known) - SHOWN_LABELS} more" if len(known) > SHOWN_LABELS else ""
        text = ", ".join(known[:SHOWN_LABELS])
        print(f"    Lines are of {text}{more}", file=sys.stderr)
    return NO_MATCH


def _by_number(label: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(label)]


def print_lines(lines: Iterable[Shown], names_of: Renamer) -> int:
    """Print lines, each with its rank and node; returns how many."""
    some = list(lines)
    for one, text in zip(some, names_of.lines([one.text for one in some]), strict=True):
        print(f"[{_label(one, names_of)}] {text}")
    return len(some)


def _label(one: Shown, names_of: Renamer) -> str:
    """Whose a line is: `node-1:3`, `node-1:local 1`, or `-` of nobody."""
    return f"{clean(names_of.text(one.node), 40)}:{one.owner}" if one.node else one.owner
