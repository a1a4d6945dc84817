"""Name the launcher that started a rank, by its parents, variables, title and frames."""

from __future__ import annotations

import functools
import os
import re
from typing import Mapping, Optional, Sequence, Tuple

from . import launchers

_MARKS = tuple(name for mark in launchers.every("marks") for name in mark.split("+"))
_FRAMES = launchers.every("frames")


@functools.lru_cache(maxsize=1024)
def of_parent(comm: str) -> Optional[str]:
    """Return the name of the launcher whose tasks a process of this name starts, as slurmstepd."""
    found = launchers.owner("parents", comm)
    return found.name if found else None


def of_process(name: str, cmdline: Sequence[str]) -> str:
    """Return the display name of a launcher's own process: a program has the name it was run by."""
    program = os.path.basename(cmdline[0]) if cmdline else ""
    is_program = any(launchers.owner(field, program) for field in ("programs", "daemons"))
    return program if is_program else name


def of_rank(
    above: Optional[str],
    environ: Mapping[str, str],
    source: Optional[str],
    cmdline: Tuple[str, ...],
    framework: Optional[str],
) -> Optional[str]:
    """Return the name of the most specific launcher involved with a rank.

    Args:
        above: name of the nearest launcher above it.
        environ: its variables.
        source: source of its number.
        cmdline: its command line or title.
        framework: launcher of its frames; not used for a rank numbered by RANK, which any launcher
            may have set.
    """
    marks = tuple(name for name in _MARKS if name in environ)
    return _first(above, marks, source, cmdline, None if source == "RANK" else framework)


@functools.lru_cache(maxsize=4096)
def _first(
    above: Optional[str],
    marks: Tuple[str, ...],
    source: Optional[str],
    cmdline: Tuple[str, ...],
    framework: Optional[str],
) -> Optional[str]:
    title = " ".join(cmdline)
    for launcher in launchers.TABLE:
        numbers = {*launcher.ranks, *launcher.pmi_ranks, *launcher.tasks} - {"RANK"}
        if (
            launcher.name in (above, framework)
            or source in numbers
            or any(set(marks).issuperset(mark.split("+")) for mark in launcher.marks)
            or (launcher.title and re.match(launcher.title, title))
        ):
            return launcher.name
    return above


@functools.lru_cache(maxsize=4096)
def of_file(path: str) -> Optional[str]:
    """Return the name of the launcher that a file in a stack belongs to."""
    if not any(part in path for part in _FRAMES):
        return None
    return next(
        launcher.name
        for launcher in launchers.TABLE
        if any(part in path for part in launcher.frames)
    )


def of_stack(paths: Sequence[str]) -> Optional[str]:
    """Return the first launcher of the table of those that files in a stack belong to."""
    names = {of_file(path) for path in paths}
    return next((launcher.name for launcher in launchers.TABLE if launcher.name in names), None)
