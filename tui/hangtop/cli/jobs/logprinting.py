"""The output of `hangtop logs`: the report on logs, or chosen lines with their ranks."""

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
"""Number of labels to list, of those that have lines, where none matched."""
NO_MATCH = 1
"""Exit status where there are lines, but none matches."""
_DIGITS = re.compile(r"(\d{1,9})")


def renamer(arguments: argparse.Namespace, files: Sequence[FileLog]) -> Renamer:
    """Return a renamer for the requested names, also for the nodes that these logs mention."""
    names = redacting.of(arguments)
    names.learn_hosts(file.place.node for file in files)
    names.learn_hosts(s.origin.node for file in files for s in file.streams)
    return names


def report(
    files: Sequence[FileLog],
    arguments: argparse.Namespace,
    alive: Collection[int | None] = (),
    more: str = "--all reads it",
    finished: Collection[int] = (),
) -> int:
    """Print the report on logs of a job whose ranks ``alive`` run; return the exit status.

    ``more`` says how to read what was not read; ``finished`` ranks exited without an error.
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
    return 10 if any(verdict.cause != "unknown" for verdict in verdicts) else 11


def print_kept(kept: Kept, files: Sequence[FileLog], choice: Choice, names_of: Renamer) -> int:
    """Print the matching lines; return the exit status: as for grep, 1 where none matches."""
    if print_lines(kept.shown(files, choice), names_of):
        return 0
    print("hangtop: no such line", file=sys.stderr)
    available = kept.shown(files, Choice()) if choice.ranks is not None or choice.node else ()
    labels = sorted(
        {_label(shown, names_of) for shown in available if shown.owner != "-"}, key=_by_number
    )
    if labels:
        more = f" and {len(labels) - SHOWN_LABELS} more" if len(labels) > SHOWN_LABELS else ""
        text = ", ".join(labels[:SHOWN_LABELS])
        print(f"    Lines are of {text}{more}", file=sys.stderr)
    return NO_MATCH


def _by_number(label: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(label)]


def print_lines(lines: Iterable[Shown], names_of: Renamer) -> int:
    """Print lines, each with its rank and node; return their number."""
    shown = list(lines)
    for entry, text in zip(shown, names_of.lines([entry.text for entry in shown]), strict=True):
        print(f"[{_label(entry, names_of)}] {text}")
    return len(shown)


def _label(shown: Shown, names_of: Renamer) -> str:
    """Return the label of a line: `node-1:3`, `node-1:local 1`, or `-` for no rank."""
    return f"{clean(names_of.text(shown.node), 40)}:{shown.owner}" if shown.node else shown.owner
