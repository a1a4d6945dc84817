"""`--redact-paths` and `--redact-hosts`, where a command prints what may be sent to somebody.

What is printed is made of data in which names have others already, so that tables and JSON say the
same. Of a running job it is a capture that is redacted, which these commands then read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hangtop_core.capture import Redaction
from hangtop_core.capture.redact import Redactor

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

T = TypeVar("T")


class Renamer:
    """Gives other names to what is to be printed; without any option it changes nothing."""

    def __init__(self, arguments: argparse.Namespace, hosts: Iterable[str | None] = ()) -> None:
        """``hosts`` are names of nodes; that of this machine is known."""
        redaction = Redaction(paths=arguments.redact_paths, hosts=arguments.redact_hosts)
        self.on = redaction.paths or redaction.hosts
        self._redactor = Redactor(redaction)
        self._redactor.learn_hosts([*dict.fromkeys(filter(None, hosts)), os.uname().nodename])

    def several(self, values: list[T], kind: Any) -> list[T]:
        """Values of a type, with other names; all at once, so that all of them are known."""
        if not self.on:
            return values
        raw = msgspec.to_builtins(values)
        self._redactor.learn_paths(raw)
        found: list[T] = msgspec.convert(self._redactor.data(raw), list[kind])
        return found

    def data(self, raw: T) -> T:
        """A document for programs."""
        found: T = self._redactor.data(msgspec.to_builtins(raw)) if self.on else raw
        return found

    def text(self, text: str) -> str:
        """Lines for people."""
        return "\n".join(map(self._redactor.text, text.split("\n"))) if self.on else text
