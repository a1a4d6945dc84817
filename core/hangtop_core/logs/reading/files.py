"""Read log files: small files whole, else their beginning, their end, and errors between.

A backward search finds the errors of big files. What was not read is reported. Apart from `lines`
and `follow`, nothing else in `logs` reads anything. Nothing is ever written.
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
"""Maximum size in bytes of a file that is read whole."""
HEAD = 1 << 20
TAIL = 16 << 20
CHUNK = 4 << 20
"""Bytes of a bigger file that are read: at its beginning, at its end, and at a time."""
QUIET = 128 << 20
"""Bytes without an error before the tail that end the search for earlier ones."""
SEARCHED = 4 << 30
SEARCH_S = 10.0
"""Limits in bytes and seconds of one backward search."""
UNPACKED = 16 << 30
"""Maximum number of bytes that are unpacked, in half a minute: a few megabytes may be any
number."""
MARKED = 8
"""Number of pieces with errors that are read beside the head and the tail: the earliest."""
MAX_FILES = 20_000
"""Maximum number of files that are read; further files are reported."""

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
    """A file to read, and its rank by its name."""

    path: str
    place: Place


def find(arguments: Sequence[str]) -> tuple[list[Found], list[str]]:
    """Return files to read, and arguments without any.

    A directory stands for everything in it that looks like a log; `-` for standard input. A
    `refused` file leads to none.
    """
    paths: dict[str, None] = {}
    nothing = []
    for argument in arguments:
        if argument == "-" or (os.path.exists(argument) and not os.path.isdir(argument)):
            if refused(argument) is None:
                paths[argument] = None
            else:
                nothing.append(argument)
        elif os.path.isdir(argument):
            inside = sorted(_inside(argument))
            paths.update(dict.fromkeys(inside))
            nothing += [] if inside else [argument]
        else:
            nothing.append(argument)
    place_of = places(paths)
    return [Found(path, place_of[path]) for path in paths], nothing


def refused(path: str) -> str | None:
    """Return why a path is not read: it is endless, blocks, or belongs to another reader."""
    try:
        info = os.fstat(0) if path == "-" else os.stat(path)
    except (OSError, ValueError):
        return None  # opening it reports the error
    mode = info.st_mode
    own = path == "-" or path.startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    if stat.S_ISFIFO(mode) and not own:
        return "it is a FIFO: what is read from it nobody else gets, and it may never end"
    # Standard input is refused only if endless: (1, 5) is /dev/zero, see null(4) and random(4).
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
    source: Found,
    number: int,
    *,
    everything: bool = False,
    keep: Callable[[Line], None] | None = None,
) -> FileLog:
    """Read one file and parse it.

    Args:
        source: the file.
        number: its number among all files, for its records.
        everything: read it whole, whatever its size.
        keep: receives every line.
    """
    try:
        if source.path == "-":
            return _of_stream(
                source, number, cast("BufferedReader", sys.stdin.buffer), everything, keep
            )
        info = os.stat(source.path)
        if not stat.S_ISREG(info.st_mode):
            with open(source.path, "rb") as stream:
                return _of_stream(source, number, stream, everything, keep)
        if source.path.endswith(".gz"):
            with gzip.open(source.path) as packed:
                return _of_stream(source, number, cast("BufferedReader", packed), everything, keep)
        with open(source.path, "rb") as file:
            return _of_file(source, number, file, info, everything, keep)
    except OSError as error:
        return FileLog(source.path, source.place, problem=_why(error))


def _of_stream(
    source: Found,
    number: int,
    stream: BufferedReader,
    everything: bool,
    keep: Callable[[Line], None] | None,
) -> FileLog:
    """Read a source without random access: a pipe, or a packed file.

    Beyond `WHOLE`, the part between its beginning and its end is only searched. A truncated packed
    file is read as far as it goes.
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

    bounded = source.path.endswith(".gz") and not everything
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
    log = parser.log(source.path, source.place, size, time.time(), (), whole)
    return msgspec.structs.replace(log, problem=problem)


def _pieces(stream: BufferedReader) -> Iterator[tuple[bytes, str | None]]:
    """Yield pieces that end with a line; the last one with the error that cut the stream."""
    remainder, problem = b"", None
    while problem is None:
        piece, problem = _piece(stream)
        if not piece:
            break
        lines, newline, remainder = (remainder + piece).rpartition(b"\n")
        if len(remainder) >= CHUNK:
            lines, newline, remainder = lines + newline + remainder, b"", b""
        yield lines + newline, None
    yield remainder, problem


def _piece(stream: BufferedReader) -> tuple[bytes, str | None]:
    """Return the next piece, and the error if one has cut the stream."""
    piece = bytearray()
    try:
        # `read1`, since `read` loses its data if a later part cannot be read.
        while len(piece) < CHUNK and (more := stream.read1(CHUNK - len(piece))):
            piece += more
    except (OSError, EOFError, zlib.error) as error:
        return bytes(piece), _why(error)
    return bytes(piece), None


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _of_file(
    source: Found,
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
    return parser.log(source.path, source.place, size, info.st_mtime, left, whole)


def _feed(parser: Parser, file: IO[bytes], start: int, end: int) -> None:
    """Feed the lines that begin in a span; the last one is fed whole."""
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
    """Return the spans of a big file to read, and the spans not even searched.

    The beginning of a log shows the settings, the end shows how the job ended. From the end, it is
    searched backwards for errors until `QUIET` bytes hold none.
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
        # Read beyond the border for marks that lie across it.
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
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def read_all(
    source: Sequence[Found],
    *,
    everything: bool = False,
    keep: Callable[[int, Line], None] | None = None,
    on_read: Callable[[int], None] | None = None,
) -> list[FileLog]:
    """Read files; ``keep`` gets the file's number and a line, ``on_read`` how many files are done.

    Files beyond `MAX_FILES` are left out; their problem says so.
    """
    logs = []
    for number, entry in enumerate(source[:MAX_FILES]):
        one_keep = partial(keep, number) if keep is not None else None
        logs.append(read(entry, number, everything=everything, keep=one_keep))
        if on_read is not None:
            on_read(number + 1)
    why = f"there are more than {MAX_FILES} files"
    return [*logs, *(FileLog(entry.path, entry.place, problem=why) for entry in source[MAX_FILES:])]
