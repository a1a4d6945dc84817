"""`hangtop core`: stacks from core files, and why the processes dumped core."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine, draws_unicode, opening, width
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.capture import is_capture
from hangtop_core.cores import elf, find
from hangtop_core.cores.read import Core, read
from hangtop_core.cores.text import head, lines, merged, shown
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import NoCoreError, UsageError
from hangtop_core.model.node.core_pattern import PATTERN_FIX, Place, understand
from hangtop_core.text.clean import clean, plural
from hangtop_probe.wire.tools import Tools

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_HERE = ("this directory", "those of your Python processes")
MAX_CORES = 512
MAX_HEADS = 8
"""Number of cores whose header is printed before the merged stacks of all."""


class Given(NamedTuple):
    """The files that were named."""

    cores: list[str]
    executable: str | None = None


class Failed(NamedTuple):
    """A core that could not be read."""

    path: str
    why: str


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    if arguments.take:
        from hangtop.cli.tools.coretake import run as take

        return take(arguments)
    if arguments.rank is not None or arguments.to is not None or arguments.yes:
        raise UsageError("--rank, --to and --yes go with --take")
    given = sort_out(arguments.path) if arguments.path else newest()
    cores, failed = read_all(given, with_native=not arguments.no_native)
    renamer = redacting.of(arguments)
    renamer.learn_hosts(core.node for core in cores)
    cores = renamer.several(cores, Core)
    failed = [Failed(*map(renamer.text, failure)) for failure in failed]
    for failure in failed:
        print(f"hangtop: {clean(failure.path, 300)} {clean(failure.why, 400)}", file=sys.stderr)
    if arguments.json:
        print(to_json(as_data(cores, failed, all_threads=arguments.all_threads)).decode())
    else:
        show(cores, arguments)
    return 0 if any(core.threads for core in cores) else 13


def sort_out(paths: Sequence[str]) -> Given:
    """Sort paths into cores, directories of cores, and the executable.

    Raises:
        UsageError: a path does not exist, or there is more than one executable.
        NoCoreError: a directory has no core.
    """
    cores: list[str] = []
    programs: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            cores_inside = find.in_directory(path)
            if not cores_inside:
                raise NoCoreError(f"no core in {clean(path, 300)}", nothing_there([path]))
            cores += cores_inside
        elif is_capture(path):
            hint = f"`{opening(path)}` looks through it."
            raise UsageError(f"{clean(path, 300)} is a capture, and no core", hint)
        elif not os.path.lexists(path):
            raise UsageError(f"{clean(path, 300)}: no such file", "")
        elif len(paths) > 1 and is_program(path):
            programs.append(path)
        else:
            cores.append(path)
    if len(programs) > 1:
        raise UsageError(f"{clean(programs[1], 300)} is a second executable", "Name one of them.")
    if not cores:
        raise UsageError("no core is named, only an executable", "hangtop core CORE [EXECUTABLE]")
    if len(cores) > MAX_CORES:
        print(f"hangtop: the first {MAX_CORES} of {len(cores)} cores are read", file=sys.stderr)
    return Given(cores[:MAX_CORES], programs[0] if programs else None)


def is_program(path: str) -> bool:
    """Return whether a file is an ELF file, and not a core."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return file.read(4) == b"\x7fELF" and not elf.is_core(path)
    except OSError:
        return False


def newest() -> Given:
    """Return the newest core where this machine puts cores.

    Raises:
        NoCoreError: there is none; the message says where cores go, and how to get them.
    """
    pattern = find.read_pattern()
    if pattern is None:
        raise NoCoreError("/proc/sys/kernel/core_pattern cannot be read: name the core")
    place = understand(pattern, find.uses_pid())
    directories = find.own_directories()
    cores = find.present(place, directories)
    if not cores and place.handler is not None:
        cores = find.present(understand("core.%p"), directories)
    if not cores:
        raise NoCoreError(f"no core found: this machine writes cores {place.text}", help_for(place))
    if len(cores) > 1:
        older = f"{plural(len(cores) - 1, 'older one')}: {clean(cores[1], 300)}"
        print(f"the newest of {len(cores)} cores; {older} …", file=sys.stderr)
    return Given(cores[:1])


def help_for(place: Place) -> str:
    """Return how to get a core that was not found."""
    if place.command is not None:
        return (
            f"{place.handler} packs cores and drops old ones. To get one: {place.command}\n"
            f"then: hangtop core {place.opens}"
        )
    if place.handler is not None:
        return f"What {place.handler} does with them is its own business; its manual says."
    if place.off:
        return f"To have them written from now on: {PATTERN_FIX}"
    return nothing_there([os.path.dirname(place.pattern)] if place.directory else _HERE)


def nothing_there(directories: Sequence[str]) -> str:
    """Return why there may be no core."""
    places = ", ".join(clean(directory, 200) for directory in directories)
    return (
        f"Looked in {places}. A core is only written "
        "where the job was started with\n`ulimit -c unlimited` (Slurm: srun --propagate=CORE), the "
        "directory can be written to and the disk has room.\n`hangtop doctor` says where cores of "
        "running ranks would go."
    )


def read_all(given: Given, *, with_native: bool) -> tuple[list[Core], list[Failed]]:
    """Read all cores; an error in one does not affect the others."""
    tools = Tools()
    cores, failed = [], []
    try:
        with StatusLine() as status:
            for number, path in enumerate(given.cores, 1):
                status.show(f"reading core {number} of {len(given.cores)} ...")
                try:
                    cores.append(read(path, tools, given.executable, with_native=with_native))
                except elf.NotACoreError as error:
                    failed.append(Failed(path, str(error)))
                except OSError as error:
                    failed.append(Failed(path, f"cannot be read: {error.strerror}"))
    finally:
        tools.close()
    return cores, failed


def show(cores: Sequence[Core], arguments: argparse.Namespace) -> None:
    """Print the cores: each separately, or merged where they are different ranks of one job."""
    ranks = [core.rank for core in cores]
    one_job = len(cores) > 1 and None not in ranks and len(set(ranks)) == len(ranks)
    columns = width()
    if arguments.each or arguments.locals or arguments.all_threads or not one_job:
        _show_each(cores, arguments, columns)
        return
    for core in cores[:MAX_HEADS]:
        for line in head(core, columns):
            print(line)
    if len(cores) > MAX_HEADS:
        print(f"and {len(cores) - MAX_HEADS} more cores (--each)")
    print()
    for text, explained in _ranks_by_reason(cores).items():
        print(f"why, {name_ranks(explained)}: {text}")
    print()
    text = merged(cores, columns, libraries=arguments.library, ascii_only=not draws_unicode())
    print(text, end="")


def _show_each(cores: Sequence[Core], arguments: argparse.Namespace, columns: int) -> None:
    for number, core in enumerate(cores):
        print("\n" * (number > 0), end="")
        for line in lines(
            core, columns, all_threads=arguments.all_threads, with_locals=arguments.locals
        ):
            print(line)


def _ranks_by_reason(cores: Sequence[Core]) -> dict[str, list[int]]:
    """Return the ranks by the first explanation of why they ended."""
    ranks: dict[str, list[int]] = {}
    for core in cores:
        for explanation in core.explanations[:1]:
            ranks.setdefault(explanation.text, []).append(core.rank or 0)
    return ranks


def as_data(
    cores: Sequence[Core], failed: Sequence[Failed], *, all_threads: bool
) -> dict[str, Any]:
    """Return everything that was read (schema `hangtop.core/1`)."""
    return {
        "schema": "hangtop.core/1",
        "cores": [
            {
                "path": core.path,
                "size": core.size,
                "written_at": core.modified,
                "rank": core.rank,
                "local_rank": core.local_rank,
                "world_size": core.world_size,
                "node": core.node,
                "role": core.role,
                "pid": core.pid,
                "uid": core.uid,
                "command": core.command,
                "executable": core.executable,
                "signal": core.signal,
                "how": core.how,
                "explanations": core.explanations,
                "problems": core.problems,
                "python_read_by": core.read_by,
                "threads": [
                    {
                        "tid": thread.tid,
                        "name": thread.name,
                        "gil": thread.gil,
                        "got_signal": bool(core.signal) and thread is core.threads[0],
                        "frames": thread.frames,
                        "locals": thread.locals,
                    }
                    for thread in shown(core, all_threads=all_threads)
                ],
            }
            for core in cores
        ],
        "unread": [{"path": failure.path, "why": failure.why} for failure in failed],
    }
