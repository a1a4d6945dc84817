"""Reads log files: whole where they are small, else their beginning and end and what lies between
by searching backwards for errors. Says what it has not read.

With `lines` and `follow` the only part of `logs` that reads anything. Nothing is ever written.
"""

from __future__ import annotations

import codecs
import gzip
import os
import stat
import sys
import time
import zlib
from collections import deque
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import msgspec

from hangtop_core.logs.parsing.parse import Line, Parser
from hangtop_core.logs.reading.names import places
from hangtop_core.model.file_log import FileLog, Place
from hangtop_core.text.clean import size as size_told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from io import BufferedReader

WHOLE = 48 << 20
"""Bytes up to which a file is read whole."""
HEAD = 1 << 20
TAIL = 16 << 20
CHUNK = 4 << 20
"""Bytes of a bigger one that are read: at its beginning, at its end, and at a time."""
QUIET = 128 << 20
"""Bytes without an error before the tail after which no earlier one is looked for."""
SEARCHED = 4 << 30
SEARCH_S = 10.0
"""Bytes and seconds that one search backwards may take."""
UNPACKED = 16 << 30
"""Bytes of a packed file that are unpacked, in half a minute: a few megabytes can be any number."""
MARKED = 8
"""Pieces with errors in them that are read beside the head and the tail: those furthest back."""
MAX_FILES = 20_000
"""Files that are read; what more there are is told."""

_MARKS = (
    b"Traceback (most recent",
    b"Watchdog caught",
    b"NCCL WARN",
    b"Fatal Python error",
    b"(exitcode: ",
    b"CANCELLED AT",
)
_ENDINGS = (".log", ".out", ".err", ".txt", ".stdout", ".stderr", ".log.gz", ".out.gz")
_NAMES = ("stdout", "stderr")


class Found(NamedTuple):
    """A file to read, and whose it is by its name."""

    path: str
    place: Place


def find(arguments: Sequence[str]) -> tuple[list[Found], list[str]]:
    """Files to read, and arguments that lead to none.

    A directory stands for all that looks like a log in it; `-` for standard input. What is
    `refused` leads to none.
    """
    paths: dict[str, None] = {}
    nothing = []
    for one in arguments:
        if one == "-" or (os.path.exists(one) and not os.path.isdir(one)):
            if refused(one) is None:
                paths[one] = None
            else:
                nothing.append(one)
        elif os.path.isdir(one):
            inside = sorted(_inside(one))
            paths.update(dict.fromkeys(inside))
            nothing += [] if inside else [one]
        else:
            nothing.append(one)
    whose = places(paths)
    return [Found(path, whose[path]) for path in paths], nothing


def refused(path: str) -> str | None:
    """Why a path is not read: it has no end, or reading would wait or take lines away from others.

    A pipe that was handed over as a descriptor, as by `<(zcat log.gz)`, is read, and so is `-`.
    """
    try:
        info = os.fstat(0) if path == "-" else os.stat(path)
    except (OSError, ValueError):
        return None  # it is told when it is opened
    mode = info.st_mode
    own = path == "-" or path.startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    if stat.S_ISFIFO(mode) and not own:
        return "it is a FIFO: what is read from it nobody else gets, and it may never end"
    # Of standard input only what never ends: (1, 5) is /dev/zero, see null(4) and random(4).
    endless = os.major(info.st_rdev) == 1 and os.minor(info.st_rdev) in (5, 7, 8, 9)
    if stat.S_ISCHR(mode) and (endless or not (own or path == "/dev/null")):
        return "it is a device, which has no end"
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        return "it is no file"
    return None


def _inside(folder: str) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            if name.endswith(_ENDINGS) or name in _NAMES or name.startswith("slurm-"):
                path = os.path.join(base, name)
                with suppress(OSError):  # it may just have been removed
                    if stat.S_ISREG(os.lstat(path).st_mode):
                        yield path


def read(
    found: Found,
    number: int,
    *,
    everything: bool = False,
    keep: Callable[[Line], None] | None = None,
) -> FileLog:
    """Read one file and parse it.

    Args:
        found: which.
        number: its number among all, for its records.
        everything: read it whole, whatever its size.
        keep: gets every line that is read.
    """
    try:
        if found.path == "-":
            return _of_stream(
                found, number, cast("BufferedReader", sys.stdin.buffer), everything, keep
            )
        info = os.stat(found.path)
        if not stat.S_ISREG(info.st_mode):
            with open(found.path, "rb") as stream:
                return _of_stream(found, number, stream, everything, keep)
        if found.path.endswith(".gz"):
            with gzip.open(found.path) as packed:
                return _of_stream(found, number, cast("BufferedReader", packed), everything, keep)
        with open(found.path, "rb") as file:
            return _of_file(found, number, file, info, everything, keep)
    except OSError as error:
        return FileLog(found.path, found.place, problem=_why(error))


def _of_stream(
    found: Found,
    number: int,
    stream: BufferedReader,
    everything: bool,
    keep: Callable[[Line], None] | None,
) -> FileLog:
    """What cannot be searched backwards: a pipe, or a packed file.

    Of more than `WHOLE` what lies between its beginning and its end is only searched. Of a packed
    file that was cut all that there is.
    """
    parser = Parser(number, time.time(), keep)
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    end: deque[bytes] = deque()
    size = held = marked = 0
    problem, gap = None, False

    def feed(piece: bytes) -> None:
        if gap:
            parser.finish()
        parser.feed(decode(piece))

    bounded = found.path.endswith(".gz") and not everything
    for piece, why in _pieces(stream):
        problem = why
        size += len(piece)
        if bounded and size > UNPACKED:
            problem = f"it unpacks to more than {size_told(UNPACKED)}, which --all reads"
            break
        if everything or size <= WHOLE - TAIL:
            feed(piece)
            continue
        end.append(piece)
        held += len(piece)
        while held - len(end[0]) >= TAIL:
            first = end.popleft()
            held -= len(first)
            if marked < MARKED and any(mark in first for mark in _MARKS):
                marked += 1
                feed(first)
                gap = False
            else:
                gap = True
    for piece in end:
        feed(piece)
        gap = False
    parser.finish()
    whole = everything or size <= WHOLE
    log = parser.log(found.path, found.place, size, time.time(), (), whole)
    return msgspec.structs.replace(log, problem=problem)


def _pieces(stream: BufferedReader) -> Iterator[tuple[bytes, str | None]]:
    """Pieces that end with a line, and with the last one why no more follows, unless at the end."""
    rest, problem = b"", None
    while problem is None:
        piece, problem = _piece(stream)
        if not piece:
            break
        lines, newline, rest = (rest + piece).rpartition(b"\n")
        if len(rest) >= CHUNK:
            lines, newline, rest = lines + newline + rest, b"", b""
        yield lines + newline, None
    yield rest, problem


def _piece(stream: BufferedReader) -> tuple[bytes, str | None]:
    """The next piece, and why no more follows where that is not its end."""
    piece = bytearray()
    try:
        # By `read1`: `read` loses what it has when the rest cannot be read.
        while len(piece) < CHUNK and (more := stream.read1(CHUNK - len(piece))):
            piece += more
    except (OSError, EOFError, zlib.error) as error:
        return bytes(piece), _why(error)
    return bytes(piece), None


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _of_file(
    found: Found,
    number: int,
    file: IO[bytes],
    info: os.stat_result,
    everything: bool,
    keep: Callable[[Line], None] | None,
) -> FileLog:
    size = info.st_size
    parser = Parser(number, info.st_mtime, keep)
    spans = [(0, size)]
    left: tuple[tuple[int, int], ...] = ()
    if size > WHOLE and not everything:
        spans, left = choose(file, size)
    for index, (start, end) in enumerate(spans):
        if index:
            parser.finish()
        _feed(parser, file, start, end)
    parser.finish()
    whole = spans == [(0, size)]
    return parser.log(found.path, found.place, size, info.st_mtime, left, whole)


def _feed(parser: Parser, file: IO[bytes], start: int, end: int) -> None:
    """Feed the lines of a span: one that began before it is left out, its last is fed whole."""
    file.seek(max(start - 1, 0))
    if start:
        file.readline(CHUNK)
    while (at := file.tell()) < end:
        piece = file.read(min(CHUNK, end - at))
        if not piece:
            return
        if not piece.endswith(b"\n"):
            piece += file.readline(CHUNK)
        parser.feed(piece.decode("utf-8", "replace"))


def choose(file: IO[bytes], size: int) -> tuple[list[tuple[int, int]], tuple[tuple[int, int], ...]]:
    """Which spans of a big file to read, and which were not even searched.

    Its beginning says what was set up, its end how it ended. From there it is searched backwards
    for errors, until there were none for `QUIET` bytes.
    """
    began = time.monotonic()
    tail = size - TAIL
    marked: list[tuple[int, int]] = []
    at, quiet = tail, 0
    while at > HEAD and quiet < QUIET and tail - at < SEARCHED:
        if time.monotonic() - began > SEARCH_S:
            break
        start = max(at - CHUNK, HEAD)
        file.seek(start)
        # Some more, for what lies across the border.
        piece = file.read(at - start + 64)
        if any(mark in piece for mark in _MARKS):
            marked.append((start, at))
            quiet = 0
        else:
            quiet += at - start
        at = start
    left = ((HEAD, at),) if at > HEAD else ()
    spans = [(0, HEAD), *sorted(marked[-MARKED:]), (tail, size)]
    return _joined(spans), left


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def read_all(
    found: Sequence[Found],
    *,
    everything: bool = False,
    keep: Callable[[int, Line], None] | None = None,
    told: Callable[[int], None] | None = None,
) -> list[FileLog]:
    """Read files; ``keep`` gets number of the file and line, ``told`` how many are done.

    Those beyond `MAX_FILES` are left out, and have that as their problem.
    """
    logs = []
    for number, one in enumerate(found[:MAX_FILES]):
        one_keep = partial(keep, number) if keep is not None else None
        logs.append(read(one, number, everything=everything, keep=one_keep))
        if told is not None:
            told(number + 1)
    why = f"there are more than {MAX_FILES} files"
    return [*logs, *(FileLog(one.path, one.place, problem=why) for one in found[MAX_FILES:])]
