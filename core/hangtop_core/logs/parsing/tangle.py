"""Tracebacks of several processes whose lines are mixed without prefixes.

Ranks that print to one file without prefixes mix their lines. The number of exceptions, their texts
and the set of all frames can still be recovered.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.logs.meaning.known import FRAME, TRACEBACK
from hangtop_core.logs.parsing import drawn

if TYPE_CHECKING:
    from hangtop_core.logs.parsing.blocks import Traceback
    from hangtop_core.model.file_log import Call, Record

MIXED = "mixed"
"""The field of a record with the number of mixed exceptions."""
MAX_LINES = 20_000
MAX_CHARS = 1 << 20
_ERROR = re.compile(
    r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)"
    r"|(?:[A-Za-z_]\w*\.)+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*)(?::\s|:$|$)"
)
"""The beginning of an exception, also of the program's own: `pkg.Fault: x`, `StepFault: x`."""
_MARKS = re.compile(r"[\s^~]*")


class Tangle:
    """A traceback with the lines mixed into it."""

    def __init__(self, inner: Traceback) -> None:
        self._inner = inner
        self.lines = inner.lines
        self._code = {line for line in inner.lines if line[:1].isspace()}
        """Lines of frames so far."""
        self._errors: Counter[str] = Counter()
        """First lines of exceptions, once lines are mixed."""
        self._begun = 1
        self._mixed = False
        self._chars = 0

    def take(self, line: str) -> bool:
        """Take the next line."""
        if not self._mixed:
            self._mixed = self._mixes(line)
            if not self._mixed:
                taken = self._inner.take(line)
                if taken and line[:1].isspace() and not _MARKS.fullmatch(line):
                    self._code.add(line)
                return taken
            self._errors.update(
                exception.partition("\n")[0] for exception in self._inner.exceptions
            )
        return self._add(line)

    def _mixes(self, line: str) -> bool:
        """Whether a line can only come from another process than those before."""
        inner = self._inner
        if inner.look != "plain":
            return False
        if inner.in_frames:
            again = line == inner.lines[-1] and line.startswith(FRAME) and '"<' not in line
            return again or (drawn.look_of(line) == "plain" and line.startswith(TRACEBACK))
        return line in self._code or (bool(inner.exceptions) and line == inner.exceptions[-1])

    def _add(self, line: str) -> bool:
        self._chars += len(line)
        if len(self.lines) >= MAX_LINES or self._chars > MAX_CHARS:
            return False
        self._begun += line.startswith(TRACEBACK)
        if _ERROR.match(line) or line in self._errors:
            self._errors[line] += 1
        elif not (line[:1].isspace() or line.startswith(TRACEBACK) or line in drawn.CHAINED):
            return False
        self.lines.append(line)
        return True

    def records(self) -> list[Record]:
        """Return one record for each different exception text."""
        if not self._mixed:
            return self._inner.records()
        ended = self._errors.total()
        total = max(self._begun, ended)
        records = [r for text, n in self._errors.items() for r in self._of(text, n, total)]
        return [*self._of("", total - ended, total), *records]

    def _of(self, text: str, count: int, total: int) -> list[Record]:
        """Return the record of exceptions with the same text, or of those without an end."""
        if not count:
            return []
        self._inner.exceptions = [text] if text else []
        fields, replace = {MIXED: str(total)}, msgspec.structs.replace
        return [
            replace(r, count=count, calls=_once(r.calls), fields={**r.fields, **fields})
            for r in self._inner.records()
        ]


def _once(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the distinct frames of equal tracebacks, in the order of first occurrence."""
    return tuple(dict.fromkeys(calls))
