"""Redaction of what commands print: secrets masked, names replaced on request.

Secrets are always masked; `--redact-paths` and `--redact-hosts` replace the names of folders, nodes
and addresses. Data is redacted before tables and JSON are made of it, so that both have the same
names, by the rules of captures. Messages on standard error are redacted as they are written.
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
"""Types of recorder columns that hold no text."""


class Renamer:
    """Masks secrets in what is printed, and replaces names on request."""

    def __init__(self, *, paths: bool = False, hosts: bool = False) -> None:
        self.names = paths or hosts
        """Whether names are replaced at all."""
        self._learning = Redactor(Redaction(paths=paths, hosts=hosts))
        self._own = [os.uname().nodename]

    def learn_hosts(self, hosts: Iterable[str | None]) -> None:
        """Learn names of nodes."""
        self._learning.learn_hosts(dict.fromkeys(filter(None, hosts)))

    def learn(self, snapshot: Snapshot) -> None:
        """Learn the nodes and folders of a snapshot, so that parts of paths are recognised, too."""
        self._learning.learn([snapshot])

    @property
    def _redactor(self) -> Redactor:
        """Return the redactor; it learns this machine after the nodes, which are counted from 1."""
        self.learn_hosts(self._own)
        self._own.clear()
        return self._learning

    def for_file(self) -> Redactor:
        """Return the redactor for a capture, so that it has the same names as the output."""
        return self._redactor.anew()

    def picture(self, snapshot: Snapshot, job: J, *, masked: bool = True) -> tuple[Snapshot, J]:
        """Redact a snapshot, without its jobs and logs, and a job.

        With ``masked`` the probes have already masked the data of nodes, except variables.
        """
        if masked and not self.names:
            return snapshot, job
        self.learn(snapshot)
        bare = msgspec.structs.replace(snapshot, jobs=(), outputs=())
        return self.one(bare), self.one(job)

    def one(self, value: T) -> T:
        """Redact a value made of structs."""
        raw = self._redactor.data(msgspec.to_builtins(value, builtin_types=_PLAIN))
        return msgspec.convert(raw, type(value), builtin_types=_PLAIN)

    def several(self, values: list[T], kind: type[T]) -> list[T]:
        """Redact values of one type together, so that folders in any of them are recognised."""
        raw = msgspec.to_builtins(values, builtin_types=_PLAIN)
        self._redactor.learn_paths(raw)
        redacted = self._redactor.data(raw)
        return cast("list[T]", msgspec.convert(redacted, list[kind], builtin_types=_PLAIN))  # type: ignore[valid-type]

    def data(self, raw: T) -> T:
        """Redact a document for programs."""
        redacted: T = self._redactor.data(msgspec.to_builtins(raw))
        return redacted

    def text(self, text: str) -> str:
        """Redact lines for people."""
        return "\n".join(self.lines(text.split("\n")))

    def lines(self, lines: list[str]) -> list[str]:
        """Redact lines together: a private key may span several of them."""
        return cast("list[str]", self._redactor.data(lines))


def of(arguments: argparse.Namespace) -> Renamer:
    """Return the renamer of this command, created on first use."""
    if "renamer" not in arguments:
        arguments.renamer = Renamer(
            paths=getattr(arguments, "redact_paths", False),
            hosts=getattr(arguments, "redact_hosts", False),
        )
    return cast("Renamer", arguments.renamer)


class _Renamed:
    """A stream whose text is redacted."""

    def __init__(self, stream: TextIO, renamer: Renamer) -> None:
        self._stream, self._renamer = stream, renamer

    def write(self, text: str) -> int:
        return self._stream.write(self._renamer.text(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def messages(arguments: argparse.Namespace) -> Iterator[None]:
    """Redact all messages on standard error."""
    before = sys.stderr
    sys.stderr = cast("TextIO", _Renamed(before, of(arguments)))
    try:
        yield
    finally:
        sys.stderr = before
