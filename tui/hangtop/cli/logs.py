"""`hangtop logs`: what ranks have printed, told apart; the first error, and what follows."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli import redacting
from hangtop.cli.fromfile import only
from hangtop.cli.output import StatusLine, coloured, width
from hangtop_core.commands import operand, spelt_or_why
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import NoLogError, UsageError
from hangtop_core.logreport import document, logs_text
from hangtop_core.logs.conclude import conclude
from hangtop_core.logs.files import MAX_FILES, Found, find, read_all, refused
from hangtop_core.logs.follow import Follower
from hangtop_core.logs.judge import judge
from hangtop_core.logs.lines import (
    Choice,
    Kept,
    Shown,
    around,
    ends_at,
    span,
    timed_within,
)
from hangtop_core.logs.stamp import stamp
from hangtop_core.logs.whose import FileLog
from hangtop_core.rankset import names, parse
from hangtop_core.text import clean, plural

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Sequence

    from hangtop.cli.redacting import Renamer
    from hangtop_core.logs.record import Record

AROUND_S = 30.0
POLL_S = 0.25
SLOW_FILES = 32
"""From so many files on, progress is told."""
PROBLEMS = 20
"""Files that were not read and are told one by one."""
SHOWN_LABELS = 12
"""Of those whose lines there are, where none was wanted."""
NO_MATCH = 1
"""Exit status where there are lines, and none of those that are wanted."""
_DIGITS = re.compile(r"(\d{1,9})")
ERRORS = ("root", "timeout")
"""Parts that following tells as they come."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    choice = chosen(arguments)
    if not arguments.path and not arguments.follow:
        from hangtop.cli.joblogs import live

        return live(arguments, choice)
    if only(arguments.path) is not None:
        from hangtop.cli.joblogs import captured

        return captured(arguments, choice)
    logs, unread = find(arguments.path)
    tell_unread(unread, follow=arguments.follow)
    if arguments.follow:
        if not set(arguments.path) - {"-"}:
            raise UsageError(
                "--follow needs files or folders",
                "The screen Logs (8) follows the logs of a job that is there.",
            )
        return follow(arguments, choice)
    if not logs:
        raise NoLogError("there is no log to read")
    if arguments.around:
        return print_around(logs, arguments, choice)
    if choice != Choice():
        kept = Kept()
        files = read_all(logs, everything=arguments.all, keep=kept.add)
        tell_problems(files)
        return print_kept(kept, files, choice, renamer(arguments, files))
    files = read_with_status(logs, everything=arguments.all)
    runs = [path for path in arguments.path if any(Path(path).glob("flight/ended_rank_*"))]
    tell_recorders(runs)
    return report(files, arguments, finished=finished_in(runs))


def tell_unread(paths: Iterable[str], *, follow: bool) -> None:
    """Say on stderr which paths have no log, and why."""
    for path in paths:
        why, name = refused(path), clean(path, 200)
        text = f"{name} is not read: {why}" if why else f"no log in {name}"
        if follow and why is None:
            text += " yet; it is read as soon as there is one"
        print(f"hangtop: {text}", file=sys.stderr)


def read_with_status(logs: Sequence[Found], *, everything: bool) -> list[FileLog]:
    """Read logs; shows how many are read where there are many."""
    with StatusLine() as status:
        total = len(logs)

        def show_progress(count: int) -> None:
            if total >= SLOW_FILES:
                status.show(f"reading logs: {count} of {total}")

        return read_all(logs, everything=everything, told=show_progress)


def tell_recorders(runs: Iterable[str]) -> None:
    """Say on stderr which folders hold recorders that ranks left when they ended."""
    for path in runs:
        command = spelt_or_why(("hangtop", "flight", operand(path)))
        print(f"hangtop: which rank waited for which: {command}", file=sys.stderr)


def finished_in(runs: Sequence[str]) -> set[int]:
    """Return the ranks of some runs that say in their recorders that they finished."""
    if not runs:
        return set()
    from hangtop_core.dumps.load import load

    traces = load([str(Path(one, "flight")) for one in runs]).traces
    return {one.rank for one in traces if one.ended == "finished"}


def chosen(arguments: argparse.Namespace) -> Choice:
    """Which lines are asked for; an empty choice where none are."""
    try:
        ranks = parse(",".join(arguments.rank)) if arguments.rank else None
        grep = re.compile(arguments.grep) if arguments.grep else None
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--rank or --grep cannot be read: {error}") from error
    return Choice(ranks, arguments.node, grep)


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


def print_around(found: Sequence[Found], arguments: argparse.Namespace, choice: Choice) -> int:
    """Print the lines around a time."""
    text, found = arguments.around, found[:MAX_FILES]
    if any(one.path == "-" for one in found):
        raise UsageError("--around needs files that can be searched, not standard input")
    kept = Kept()
    files = []
    try:
        # Of a time without its day the last one is meant at which the logs were written.
        last = max(ends_at(one.path) for one in found)
        at = stamp(f"{text} ", last + AROUND_S)
        if at is None:
            fix = "Write 11:17:50 or 2026-11-21 11:17:50."
            raise UsageError(f"--around: {text!r} is no time", fix)
        for number, one in enumerate(found):
            start, end = around(one.path, at, AROUND_S)
            near = timed_within(at, AROUND_S, at, partial(kept.add, number))
            files.append(span(one, number, start, end, near))
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error
    if print_lines(kept.shown(files, choice), renamer(arguments, files)):
        return 0
    print(f"hangtop: no such line within {AROUND_S:.0f} s of {_day(at)}", file=sys.stderr)
    print(f"    The last lines are of {_day(last)}", file=sys.stderr)
    return NO_MATCH


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).isoformat(" ", "seconds")


def follow(arguments: argparse.Namespace, choice: Choice) -> int:
    """Print lines as they come, and errors as they are understood; sum up at the end."""
    follower, names_of = Follower(arguments.path, choice), redacting.of(arguments)
    try:
        while True:
            lines, records, notes = follower.poll()
            print_lines(lines, names_of)
            for note in notes:
                print(f"hangtop: {clean(note, 300)}", file=sys.stderr)
            for record in records:
                tell_error(record, names_of)
            sys.stdout.flush()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return report(follower.logs(), arguments)
    finally:
        follower.close()


def tell_error(record: Record, names_of: Renamer) -> None:
    """Say on stderr what an error means, as soon as it is whole."""
    if record.part in ERRORS:
        whose = names([record.rank]) if record.rank is not None else "a process"
        text = names_of.text(record.means or record.text)
        print(f"hangtop: {whose}: {text}", file=sys.stderr)


def print_kept(kept: Kept, files: Sequence[FileLog], choice: Choice, names_of: Renamer) -> int:
    """Print the lines that are wanted; returns the exit status: as of grep, 1 where none is."""
    if print_lines(kept.shown(files, choice), names_of):
        return 0
    print("hangtop: no such line", file=sys.stderr)
    some = kept.shown(files, Choice()) if choice.ranks is not None or choice.node else ()
    known = sorted({_label(one, names_of) for one in some if one.who != "-"}, key=_by_number)
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
    return f"{clean(names_of.text(one.node), 40)}:{one.who}" if one.node else one.who


def tell_problems(files: Iterable[FileLog]) -> None:
    """Say on stderr what was not read."""
    files = list(files)
    bad = [one for one in files if one.problem is not None]
    for one in bad[:PROBLEMS]:
        print(f"hangtop: {clean(one.path, 200)}: {clean(one.problem or '', 200)}", file=sys.stderr)
    if len(bad) > PROBLEMS:
        print(f"hangtop: and {plural(len(bad) - PROBLEMS, 'more file')} not read", file=sys.stderr)
    for one in files:
        for start, end in one.left:
            what = f"{clean(one.path, 200)}: bytes {start} to {end} were not read (--all)"
            print(f"hangtop: {what}", file=sys.stderr)
