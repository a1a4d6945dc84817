"""Search for cores on this machine."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop_core.cores import elf, packed
from hangtop_core.model.node.core_pattern import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PATTERN = Path("/proc/sys/kernel/core_pattern")
USES_PID = Path("/proc/sys/kernel/core_uses_pid")
MAX_BELOW = 1024
"""Maximum number of subdirectories that are searched."""
MAX_NAMES = 20_000
"""Maximum number of names that are checked in one directory."""


def read_pattern(path: Path = PATTERN) -> str | None:
    """Return the core_pattern of this machine; None if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


def uses_pid(path: Path = USES_PID) -> bool:
    """Whether `.PID` is appended to names of cores without a pid."""
    try:
        return path.read_text().strip() == "1"
    except OSError:
        return False


def present(place: Place, directories: Iterable[str]) -> list[str]:
    """Return the cores in the pattern's place, newest first.

    Args:
        place: the parsed pattern.
        directories: working directories to search if the pattern names none.
    """
    where = [place.directory] if place.directory is not None else [*dict.fromkeys(directories)]
    for name in place.below:
        where = [
            below
            for directory in where
            for below in _directories(directory, links=True)
            if name.fullmatch(os.path.basename(below))
        ][:MAX_BELOW]
    modified_at = {
        path: modified
        for directory in where
        for path, modified in _candidates(directory, place)
        if _is_core(path)
    }
    return sorted(modified_at, key=lambda path: -modified_at[path])


def in_directory(directory: str) -> list[str]:
    """Return all cores in one directory, by name, and those in its subdirectories by their names.

    Ranks that run in directories of their own leave their cores there.
    """
    everything = Place("", directory=directory, name=re.compile(".*"))
    named = Place("", directory=directory, name=re.compile(".*core.*"))
    paths = [path for path, _ in _candidates(directory, everything)]
    for below in _directories(directory):
        paths += [path for path, _ in _candidates(below, named)]
    return sorted(filter(_is_core, paths))


def _is_core(path: str) -> bool:
    """Whether a file is a core, or packed with the name of a core: its content is not checked."""
    return elf.is_core(path) or (
        "core" in os.path.basename(path) and packed.program(path) is not None
    )


def _directories(directory: str, *, links: bool = False) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            paths = [entry.path for entry in entries if entry.is_dir(follow_symlinks=links)]
    except OSError:
        return []
    return sorted(paths)[:MAX_BELOW]


def _candidates(directory: str, place: Place) -> Iterator[tuple[str, float]]:
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number > MAX_NAMES:
                    return
                if place.name is None or not place.name.fullmatch(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # it may just have been removed
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_size:
                    yield entry.path, status.st_mtime
    except OSError:
        return


def own_directories() -> list[str]:
    """Return this directory, and the working directories of this user's Python processes."""
    folders = []
    with suppress(FileNotFoundError):  # it may have been removed
        folders.append(os.getcwd())
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            comm = Path(f"/proc/{name}/comm").read_bytes()  # not always UTF-8
            if comm.startswith((b"python", b"pt_", b"torchrun")):
                folders.append(os.readlink(f"/proc/{name}/cwd"))
        except OSError:
            continue
    return folders
