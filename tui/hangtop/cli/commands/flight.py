"""`hangtop flight`: read and diagnose flight-recorder dumps; the exit status is the verdict."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from hangtop.app import prepare, run_app
from hangtop.cli import config
from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs import flightlive, fromfile
from hangtop.cli.jobs.observe import exit_status
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine
from hangtop.cli.output.writing import STDOUT, check_file
from hangtop.source.dump_files import FileSource
from hangtop_core.analysis.flight.picture import FileProblem, examine
from hangtop_core.diagnosis import to_json
from hangtop_core.dumps.load import default_patterns, load
from hangtop_core.errors import NoDumpError, UsageError
from hangtop_core.model.recorder.trace import Trace
from hangtop_core.text.clean import clean
from hangtop_core.text.rank_sets import parse

if TYPE_CHECKING:
    import argparse

    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.dumps.load import Loaded

SLOW_FILES = 64
"""Number of files from which progress is shown."""

_LIVE = {
    "nodes": "-w",
    "exclude": "-x",
    "hostfile": "--hostfile",
    "job": "--job",
    "via": "--via",
    "command": "--command",
    "user": "-l",
    "sudo": "--sudo",
    "pid": "--pid",
    "all_users": "--all-users",
    "job_key": "--job-key",
}
"""Options that choose running ranks, by the name of their value."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    ranks = selected(arguments.selected_ranks)
    if arguments.output == STDOUT:
        arguments.output, arguments.json = None, True
    if arguments.output is not None:
        check_file(arguments.output)
    _check_selection(arguments, ranks)
    capture = fromfile.only(arguments.path)
    _check_running_options(arguments, capture)
    _check_file_options(arguments)
    if capture is not None:
        return fromfile.flight(arguments, ranks)
    if arguments.tui:
        prepare()  # before files are read: without a terminal there is no reason to read them
    if not arguments.path and (status := flightlive.run(arguments, ranks)) is not None:
        return status
    return _judge_files(arguments, ranks)


def _check_selection(arguments: argparse.Namespace, ranks: frozenset[int] | None) -> None:
    """Refuse options that choose entries where no entries are printed."""
    selects = ranks is not None or arguments.pg_filters or arguments.stacks
    if selects and not arguments.entries:
        raise UsageError(
            "--selected-ranks, --pg-filters and --stacks choose what -j prints",
            "The verdict is always on all ranks; add -j for a table of entries.",
        )


def _check_running_options(arguments: argparse.Namespace, capture: str | None) -> None:
    """Refuse options for running ranks beside a path of dumps or a capture."""
    if not arguments.path:
        return
    if arguments.trigger or arguments.allow_inject:
        raise UsageError(
            "--trigger and --allow-inject are for running ranks", "Leave the PATH out."
        )
    flag = _for_live(arguments)
    if flag and not (capture is not None and flag == "--job-key"):
        raise UsageError(
            f"{flag} is for running ranks, and {clean(arguments.path[0], 100)} is a path of dumps",
            "Leave out one of the two; dumps are read on this machine.",
        )


def _check_file_options(arguments: argparse.Namespace) -> None:
    """Refuse options for dump files without the options that they need."""
    if arguments.transform_ft and not arguments.group_world_size:
        raise UsageError("--transform-ft needs --group-world-size")
    if arguments.tui and not arguments.path:
        raise UsageError(
            "--tui shows dump files: name them", "`hangtop` shows running ranks, on Recorder."
        )


def _judge_files(arguments: argparse.Namespace, ranks: frozenset[int] | None) -> int:
    """Read dump files, print the diagnosis, and return the exit status."""
    replica = arguments.group_world_size if arguments.transform_ft else None
    loaded = read(arguments, replica)
    picture = _examine(loaded, arguments)
    diagnosis = picture.diagnosis
    if not loaded.files and all(problem.rank is None for problem in loaded.problems):
        if arguments.json:
            print(to_json(diagnosis).decode())
        raise NoDumpError(nothing_found(arguments.path, arguments.prefix, loaded))
    flightlive.keep(diagnosis, arguments)
    if arguments.tui:
        look(picture, arguments)
    else:
        flightlive.show(diagnosis, picture, arguments, ranks)
    if not any(trace.length or trace.statuses for trace in loaded.traces):
        return 13
    return 0 if diagnosis.state == "unknown" else exit_status(diagnosis)


def _examine(loaded: Loaded, arguments: argparse.Namespace) -> Picture:
    """Examine loaded dumps, with names replaced first where that was asked for."""
    problems = [FileProblem(file.path, file.kind, file.why, file.rank) for file in loaded.problems]
    traces = loaded.traces
    renamer = redacting.of(arguments)
    if renamer.names:
        traces = renamer.several(traces, Trace)
        problems = renamer.several(problems, FileProblem)
    return examine(traces, problems, loaded.files)


def read(arguments: argparse.Namespace, replica: int | None) -> Loaded:
    """Read the named dumps, or those where torch writes them; show the progress."""
    with StatusLine() as line:

        def show_progress(finished: int, total: int) -> None:
            if total >= SLOW_FILES:
                line.show(f"reading dumps: {finished} of {total}")

        return load(places(arguments.path), arguments.prefix, show_progress, replica)


def look(picture: Picture, arguments: argparse.Namespace) -> None:
    """Open the app on the dumps."""
    arguments = complete(arguments)
    name = clean(", ".join(arguments.path), 200)
    run_app(
        FileSource(picture, name),
        ascii=arguments.ascii,
        light=arguments.light,
        mouse=arguments.mouse,
        live=False,
        files=picture,
        keymap=config.keymap(config.config_path()),
    )


def _for_live(arguments: argparse.Namespace) -> str:
    """Return a given option that names running ranks or their user; empty for none."""
    return next((flag for name, flag in _LIVE.items() if getattr(arguments, name, None)), "")


def selected(texts: list[str] | None) -> frozenset[int] | None:
    """Return the ranks of `0 3` or `0-3,8`; None for all."""
    if texts is None:
        return None
    try:
        return parse(",".join(texts))
    except ValueError as error:
        raise UsageError(f"--selected-ranks: {error}") from error


def places(paths: list[str]) -> list[str]:
    """Return the paths to read: the named ones, or else where torch writes dumps."""
    if paths:
        return paths
    patterns = default_patterns(os.environ)
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def nothing_found(paths: list[str], prefix: str | None, loaded: Loaded) -> str:
    """Return why there is nothing to read."""
    if not paths:
        return "no dumps where torch writes them: " + ", ".join(default_patterns(os.environ))
    where = clean(", ".join(paths), 200)
    if prefix is not None:
        return f"no file in {where} has {prefix!r} and a rank in its name"
    unreadable = len(loaded.problems)
    return f"no dumps in {where}" + (
        f": none of {unreadable} files has a rank in its name" * bool(unreadable)
    )
