"""`hangtop logs`: the logs of ranks, line by rank; the first error, and its consequences."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.jobs.fromfile import only
from hangtop.cli.jobs.logprinting import NO_MATCH, print_kept, print_lines, renamer, report
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine
from hangtop_core.errors import NoLogError, UsageError
from hangtop_core.logs.parsing.stamp import stamp
from hangtop_core.logs.reading.files import MAX_FILES, Found, find, read_all, refused
from hangtop_core.logs.reading.follow import Follower
from hangtop_core.logs.reading.lines import Choice, Kept, around, ends_at, span, timed_within
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import operand, spelt_or_why
from hangtop_core.text.rank_sets import names, parse

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from hangtop.cli.output.redacting import Renamer
    from hangtop_core.model.file_log import FileLog, Record

AROUND_S = 30.0
POLL_S = 0.25
SLOW_FILES = 32
"""Number of files from which progress is shown."""
PROBLEMS = 20
"""Number of unreadable files that are listed one by one."""
ERRORS = ("root", "timeout")
"""Parts that following reports as they arrive."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    choice = chosen(arguments)
    if not arguments.path and not arguments.follow:
        from hangtop.cli.jobs.joblogs import live

        return live(arguments, choice)
    if only(arguments.path) is not None:
        from hangtop.cli.jobs.joblogs import captured

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
    """Report on stderr which paths have no log, and why."""
    for path in paths:
        why, name = refused(path), clean(path, 200)
        text = f"{name} is not read: {why}" if why else f"no log in {name}"
        if follow and why is None:
            text += " yet; it is read as soon as there is one"
        print(f"hangtop: {text}", file=sys.stderr)


def read_with_status(logs: Sequence[Found], *, everything: bool) -> list[FileLog]:
    """Read logs, showing the progress where there are many."""
    with StatusLine() as status:
        total = len(logs)

        def show_progress(count: int) -> None:
            if total >= SLOW_FILES:
                status.show(f"reading logs: {count} of {total}")

        return read_all(logs, everything=everything, on_read=show_progress)


def tell_recorders(runs: Iterable[str]) -> None:
    """Report on stderr which folders hold recordings of ranks that ended."""
    for path in runs:
        command = spelt_or_why(("hangtop", "flight", operand(path)))
        print(f"hangtop: which rank waited for which: {command}", file=sys.stderr)


def finished_in(runs: Sequence[str]) -> set[int]:
    """Return the ranks of some runs whose recordings say that they finished."""
    if not runs:
        return set()
    from hangtop_core.dumps.load import load

    traces = load([str(Path(folder, "flight")) for folder in runs]).traces
    return {trace.rank for trace in traces if trace.ended == "finished"}


def chosen(arguments: argparse.Namespace) -> Choice:
    """Return which lines are asked for; an empty choice for none."""
    try:
        ranks = parse(",".join(arguments.rank)) if arguments.rank else None
        grep = re.compile(arguments.grep) if arguments.grep else None
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--rank or --grep cannot be read: {error}") from error
    return Choice(ranks, arguments.node, grep)


def print_around(logs: Sequence[Found], arguments: argparse.Namespace, choice: Choice) -> int:
    """Print the lines around a time."""
    text, logs = arguments.around, logs[:MAX_FILES]
    if any(log.path == "-" for log in logs):
        raise UsageError("--around needs files that can be searched, not standard input")
    kept = Kept()
    files = []
    try:
        # A time without a date is the last such time at which the logs were written.
        last = max(ends_at(log.path) for log in logs)
        at = stamp(f"{text} ", last + AROUND_S)
        if at is None:
            fix = "Write 11:17:50 or 2026-11-21 11:17:50."
            raise UsageError(f"--around: {text!r} is no time", fix)
        for number, log in enumerate(logs):
            start, end = around(log.path, at, AROUND_S)
            near = timed_within(at, AROUND_S, at, partial(kept.add, number))
            files.append(span(log, number, start, end, near))
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
    """Print lines as they arrive, and errors as they are understood; sum up at the end."""
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
    """Report on stderr what an error means, as soon as it is complete."""
    if record.part in ERRORS:
        owner = names([record.rank]) if record.rank is not None else "a process"
        text = names_of.text(record.means or record.text)
        print(f"hangtop: {owner}: {text}", file=sys.stderr)


def tell_problems(files: Iterable[FileLog]) -> None:
    """Report on stderr what was not read."""
    files = list(files)
    bad = [file for file in files if file.problem is not None]
    for file in bad[:PROBLEMS]:
        print(
            f"hangtop: {clean(file.path, 200)}: {clean(file.problem or '', 200)}", file=sys.stderr
        )
    if len(bad) > PROBLEMS:
        print(f"hangtop: and {plural(len(bad) - PROBLEMS, 'more file')} not read", file=sys.stderr)
    for file in files:
        for start, end in file.left:
            what = f"{clean(file.path, 200)}: bytes {start} to {end} were not read (--all)"
            print(f"hangtop: {what}", file=sys.stderr)
