"""From paths that a person gave to files with ranks.

A dump does not contain its rank; its file name does: `<prefix><rank>`, one file per rank. torch's
prefixes: `/tmp/nccl_trace_rank_` (up to 2.8), `~/.cache/torch/comm_lib_trace_rank_` (since); others
use `_dump_3`, `rank_12`, or put a host name in between, digits and all.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_FILES = 200_000
_EXTENSIONS = re.compile(r"\.(json|pkl|pickle|pt|dump|bin|trace|fr)$", re.IGNORECASE)
_NAMED = re.compile(r"(?:^|[^a-zA-Z])rank[-_.=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_LAST = re.compile(r"(?<!\d)(\d{1,6})$")

Kind = Literal[
    "empty",
    "truncated",
    "foreign",
    "duplicate",
    "stale",
    "refused",
    "too-large",
    "unreadable",
    "no-rank",
    "no-entries",
    "misnamed",
    "version",
    "clock-set",
]


class Problem(Struct, frozen=True):
    """A problem of a file that a person should know; the other files are used all the same."""

    path: str
    kind: Kind
    why: str
    rank: int | None = None
    """The rank of the dump by its name; None for other files."""


class DumpFile(Struct, frozen=True):
    """A file that may be a dump."""

    path: str
    rank: int
    size: int
    modified: float
    explicit: bool
    """Whether it was named, and not found in a directory."""


def rank_of(name: str, prefix: str | None = None) -> int | None:
    """Return the rank in a file's name; None without one.

    With a prefix: the digits right behind it, or, behind a host name, the last ones. Without: the
    digits after the word `rank`, else the last ones.
    """
    stem = _EXTENSIONS.sub("", name)
    if prefix is not None:
        at = name.find(prefix)
        if at < 0:
            return None
        tail = name[at + len(prefix) :]
        behind = re.match(r"(\d{1,6})(?:$|\D)", tail) or _LAST.search(_EXTENSIONS.sub("", tail))
        return int(behind[1]) if behind else None
    named = _NAMED.findall(stem)
    if named:
        return int(named[-1])
    last = _LAST.search(stem)
    return int(last[1]) if last else None


def find(paths: Sequence[str], prefix: str | None = None) -> tuple[list[DumpFile], list[Problem]]:
    """Return all files that may be dumps, ascending by rank, and the problems of the others.

    Args:
        paths: files, directories (searched recursively, links not followed) and patterns.
        prefix: text before the rank in file names; files without it are left out.

    Raises:
        UsageError: a path does not exist, or a pattern matches nothing.
    """
    files: dict[str, DumpFile] = {}
    problems: list[Problem] = []
    # torch and its users write the directory into the prefix, too.
    prefix = os.path.basename(prefix) if prefix else None
    for path, explicit in _walk(paths):
        name = os.path.basename(path)
        if prefix is not None and prefix not in name:
            continue
        file = _checked(path, rank_of(name, prefix), explicit)
        if isinstance(file, Problem):
            problems.append(file)
        elif file is not None:
            key = os.path.realpath(path)
            if key not in files or not os.path.islink(path):  # prefer a file's own name
                files[key] = file
    return sorted(files.values(), key=lambda file: (file.rank, file.path)), problems


def _checked(path: str, rank: int | None, explicit: bool) -> DumpFile | Problem | None:
    """Return a possible dump, or its problem; None for other files."""
    try:
        status = os.stat(path)
    except OSError as error:
        return Problem(path, "unreadable", _cannot_be_read(error), rank)
    mode = status.st_mode
    if stat.S_ISDIR(mode) and not os.access(path, os.R_OK | os.X_OK):
        return Problem(path, "unreadable", "cannot be listed: permission denied", rank)
    if not stat.S_ISREG(mode):
        # Opening a FIFO, such as torch's own dump pipe, would wait for ever.
        named = explicit or (rank is not None and not path.endswith(".pipe"))
        return Problem(path, "foreign", _no_file(mode), rank) if named else None
    if rank is None:
        why = "has no rank in its name; say what stands before it with --prefix"
        return Problem(path, "no-rank" if explicit else "foreign", why)
    if status.st_size == 0:
        why = "is empty: it was never written, or is no whole copy"
        return Problem(path, "empty", why, rank)
    return DumpFile(path, rank, status.st_size, status.st_mtime, explicit)


def _cannot_be_read(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _no_file(mode: int) -> str:
    """Return the problem of a special file, which is never opened."""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))
    what = next((words for is_kind, words in kinds if is_kind(mode)), "a device")
    return f"is no regular file but {what}"


def folder_of(path: str) -> str:
    """Return the folder of dumps; for a run of `hangtop run` its `flight`."""
    flight = os.path.join(path, "flight")
    is_run = os.path.isdir(os.path.join(path, "hook", "hangtop_hook")) and os.path.isdir(flight)
    return flight if is_run else path


def _walk(paths: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield all files under some paths, and whether each was named itself.

    Folders are yielded, too, if they are empty or cannot be listed.
    """
    count = 0
    for given in paths:
        for path in _expand(given):
            if not os.path.isdir(path):
                yield path, True
                continue
            for inside in _inside(folder_of(path)):
                count += 1
                if count > MAX_FILES:
                    raise UsageError(
                        f"more than {MAX_FILES} files under {path}",
                        "Name the directory of the dumps, or their prefix with --prefix.",
                    )
                yield inside, False


def _inside(folder: str) -> Iterator[str]:
    closed: list[str] = []
    for root, folders, names in os.walk(folder, onerror=lambda e: closed.append(str(e.filename))):
        folders.sort()
        if root != folder and not names and not folders:
            yield root
        yield from (os.path.join(root, name) for name in sorted(names))
    yield from closed


def _expand(given: str) -> list[str]:
    path = os.path.expanduser(given)
    if os.path.lexists(path):
        return [path]
    matches = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []
    if not matches:
        raise UsageError(
            f"{given}: " + ("no such file matches" if glob.has_magic(path) else "no such file"),
            "Give the files, or the directory they are in. torch writes them to the prefix in\n"
            "TORCH_FR_DUMP_TEMP_FILE (before: TORCH_NCCL_DEBUG_INFO_TEMP_FILE), else to\n"
            "~/.cache/torch/comm_lib_trace_rank_* (up to torch 2.8: /tmp/nccl_trace_rank_*).",
        )
    return matches
