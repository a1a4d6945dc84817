"""What commands print is fit to be handed on: secrets masked, other names where that is asked for.

Secrets are masked always; `--redact-paths` and `--redact-hosts` give folders, nodes and addresses
other names. That is done to data before tables and JSON are made of it, so that both say the same,
by the rules of captures. Messages on standard error are renamed as they are written.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import msgspec

from hangtop_core.capture import Redaction
from hangtop_core.capture.redact import Redactor

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from hangtop_core.model.snapshot import Job, Snapshot

T = TypeVar("T")
J = TypeVar("J", "Job", None)
_PLAIN = (bytes,)
"""Columns of recorders hold no text."""


class Renamer:
    """Masks secrets in what is to be printed, and gives other names where they are asked for."""

    def __init__(self, *, paths: bool = False, hosts: bool = False) -> None:
        self.names = paths or hosts
        """Whether names are changed at all."""
        self._learning = Redactor(Redaction(paths=paths, hosts=hosts))
        self._own = [os.uname().nodename]

    def learn_hosts(self, hosts: Iterable[str | None]) -> None:
        """Take in names of nodes."""
        self._learning.learn_hosts(dict.fromkeys(filter(None, hosts)))

    def learn(self, snapshot: Snapshot) -> None:
        """Take in the nodes and folders of a picture, so that parts of paths are known, too."""
        self._learning.learn([snapshot])

    @property
    def _redactor(self) -> Redactor:
        """Knows this machine after the nodes, which are counted from 1."""
        self.learn_hosts(self._own)
        self._own.clear()
        return self._learning

    def for_file(self) -> Redactor:
        """What a capture is written by, so that it has the names that are printed."""
        return self._redactor.anew()

    def picture(self, snapshot: Snapshot, job: J, *, masked: bool = True) -> tuple[Snapshot, J]:
        """A picture without its jobs and logs, and the job that is looked at.

        What nodes say is ``masked`` by them, but for variables.
        """
        if masked and not self.names:
            return snapshot, job
        self.learn(snapshot)
        bare = msgspec.structs.replace(snapshot, jobs=(), outputs=())
        return self.one(bare), self.one(job)

    def one(self, value: T) -> T:
        """A value made of structs."""
        raw = self._redactor.data(msgspec.to_builtins(value, builtin_types=_PLAIN))
        return msgspec.convert(raw, type(value), builtin_types=_PLAIN)

    def several(self, values: list[T], kind: type[T]) -> list[T]:
        """Values of one type; all at once, so that folders in any of them are known."""
        raw = msgspec.to_builtins(values, builtin_types=_PLAIN)
        self._redactor.learn_paths(raw)
        found = self._redactor.data(raw)
        return cast("list[T]", msgspec.convert(found, list[kind], builtin_types=_PLAIN))  # type: ignore[valid-type]

    def data(self, raw: T) -> T:
        """A document for programs."""
        found: T = self._redactor.data(msgspec.to_builtins(raw))
        return found

    def text(self, text: str) -> str:
        """Lines for people."""
        return "\n".join(self.lines(text.split("\n")))

    def lines(self, lines: list[str]) -> list[str]:
        """The same, line by line; a private key may be in several of them."""
        return cast("list[str]", self._redactor.data(lines))


def of(arguments: argparse.Namespace) -> Renamer:
    """The one of this command; made when it is first asked for."""
    if "renamer" not in arguments:
        arguments.renamer = Renamer(
            paths=getattr(arguments, "redact_paths", False),
            hosts=getattr(arguments, "redact_hosts", False),
        )
    return cast("Renamer", arguments.renamer)


class _Renamed:
    """A stream with other names in what is written to it."""

    def __init__(self, stream: TextIO, renamer: Renamer) -> None:
        self._stream, self._renamer = stream, renamer

    def write(self, text: str) -> int:
        return self._stream.write(self._renamer.text(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def messages(arguments: argparse.Namespace) -> Iterator[None]:
    """Give other names to all that is said on standard error."""
    before = sys.stderr
    sys.stderr = cast("TextIO", _Renamed(before, of(arguments)))
    try:
        yield
    finally:
        sys.stderr = before
