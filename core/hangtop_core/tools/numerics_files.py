"""Read the files that ranks of `hangtop run --detect-overflow` write. They are untrusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.errors import NoLogError
from hangtop_core.model.numerics import First, Frame, Header, Note, Numerics, Seen
from hangtop_core.text.clean import clean
from hangtop_hook.numericsfile import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MAX_FILE = 1 << 30
MAX_LINE = 16 << 20
"""Maximum number of bytes of a file and of a line."""
MAX_FIRSTS = 64
"""Maximum number of first values, and of notes, of one file that are kept."""
MAX_TRACED = 200_000
"""Maximum number of frames of traced batches of one file."""


class _Type(msgspec.Struct, frozen=True):
    type: str = ""


_kind = msgspec.json.Decoder(_Type)


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the files in folders: those of a run, of its `numerics`, or named themselves.

    Raises:
        NoLogError: when there is none.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = path / "numerics"
            files += sorted((inside if inside.is_dir() else path).glob("*.jsonl"))
        elif path.exists():
            files.append(path)
    if not files:
        raise NoLogError(
            "no numerics file there",
            "Name the folder of a run that was started with `hangtop run --detect-overflow`; "
            "a rank writes its file when its first batch is over.",
        )
    return files


def read(path: Path, wanted: Callable[[int], bool] = lambda _: False) -> Numerics:
    """Read a file; frames of traced batches that are ``wanted``, too.

    Errors are in the result's failure.
    """
    reader = _Reader(path, wanted)
    if not path.is_file():
        reader.failure = "is no regular file"  # opening a pipe would wait for ever
        return reader.numerics()
    try:
        with path.open("rb") as file:
            reader.header = _header(file.readline(MAX_LINE))
            while file.tell() < MAX_FILE:
                line = file.readline(MAX_LINE)
                if not line.endswith(b"\n"):
                    break
                reader.take(line)
            else:
                reader.failure = f"only its first {MAX_FILE >> 30} GiB were read"
    except OSError as error:
        reader.failure = f"cannot be read: {error.strerror}"
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reader.failure = f"is no numerics file of this version: {clean(str(error), 200)}"
    return reader.numerics()


def _header(line: bytes) -> Header:
    header = msgspec.json.decode(line, type=Header)
    if header.schema != SCHEMA:
        raise ValueError(f"its schema is {header.schema!r}")
    return header


class _Reader:
    """The content of a file so far."""

    def __init__(self, path: Path, wanted: Callable[[int], bool]) -> None:
        self._path = path
        self._wanted = wanted
        self.header = Header()
        self.failure: str | None = None
        self._firsts: list[First] = []
        self._traced: list[Frame] = []
        self._notes: list[str] = []
        self._seen: Seen | None = None

    def take(self, line: bytes) -> None:
        """Take one line; unknown kinds are skipped."""
        kind = _kind.decode(line).type
        if kind == "first" and len(self._firsts) < MAX_FIRSTS:
            self._firsts.append(msgspec.json.decode(line, type=First))
        elif kind == "frame" and len(self._traced) < MAX_TRACED:
            frame = msgspec.json.decode(line, type=Frame)
            if self._wanted(frame.batch):
                self._traced.append(frame)
        elif kind == "seen":
            self._seen = msgspec.json.decode(line, type=Seen)
        elif kind == "note" and len(self._notes) < MAX_FIRSTS:
            self._notes.append(msgspec.json.decode(line, type=Note).text)

    def numerics(self) -> Numerics:
        """Return the whole content."""
        return Numerics(
            rank=self.header.rank,
            node=self.header.node,
            pid=self.header.pid,
            path=str(self._path)[:4096],
            attempt=self.header.attempt,
            firsts=tuple(self._firsts),
            seen=self._seen,
            notes=tuple(self._notes),
            traced=tuple(self._traced),
            failure=self.failure,
        )
