"""Which locks a thread holds and which one it wants, by the `with` lines of its own frames.

Lines name locks as the program does: `self.lock` of two classes are two locks, of two objects of a
class perhaps, so what is concluded from names alone is said to be likely.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.model.frames import is_library, library_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.model.snapshot import Frame

_WITH = re.compile(r"^(?:async\s+)?with\s+\(?([\w.\[\]]+)\)?\s*(?:as\s+\w+\s*)?:")
_ACQUIRE = re.compile(r"(?:^|[\s(=])([\w.\[\]]+)\.acquire\(")


class Lock(NamedTuple):
    """A lock as a line names it."""

    name: str
    """`self.lock`."""
    of: str
    """The class, where the name begins with `self`; else the file."""
    at: str
    """Where it is taken: `meter.py:41`."""

    def same(self, other: Lock) -> bool:
        """Whether two lines name one lock."""
        return (self.name, self.of) == (other.name, other.of)

    def alike(self, other: Lock) -> bool:
        """Whether they may: `self.weights.lock` is most likely one thing, in two classes, too."""
        return self.same(other) or (self.name == other.name and self.name.count(".") > 1)


def wanted(stack: Sequence[Frame]) -> Lock | None:
    """The lock that the innermost own line of a stack takes."""
    own = next((frame for frame in stack if not is_library(frame)), None)
    if own is None or not own.source:
        return None
    found = _WITH.search(own.source.strip()) or _ACQUIRE.search(own.source)
    return _lock(own, found[1], own.line) if found else None


def held(stack: Sequence[Frame]) -> Iterator[Lock]:
    """What the `with` lines around its own frames name, locks or not, innermost first."""
    for frame in stack:
        for line, text in reversed(frame.beside or ()):
            found = _WITH.search(text)
            if found:
                yield _lock(frame, found[1], line)


def crossed(one: Sequence[Frame], other: Sequence[Frame]) -> tuple[Lock, Lock] | None:
    """What each of two threads wants, as the other has taken it; None where that is not so."""
    first, second = wanted(one), wanted(other)
    if first is None or second is None or first.alike(second):
        return None
    theirs = next((lock for lock in held(other) if first.alike(lock)), None)
    mine = next((lock for lock in held(one) if second.alike(lock)), None)
    return (theirs, mine) if theirs is not None and mine is not None else None


def between_processes(stack: Sequence[Frame]) -> bool:
    """Whether what its innermost own line takes may be had by another process.

    What threading makes is not: its locks have no frame of Python code, the rest is in that file.
    """
    run = [frame for frame in library_run(stack) if not frame.native]
    return bool(run) and not any(frame.file.endswith("/threading.py") for frame in run)


def again(stack: Sequence[Frame]) -> tuple[Lock, int] | None:
    """Where a thread has taken the very lock already that it wants, and in which of its frames."""
    want = wanted(stack)
    for depth, frame in enumerate(stack if want is not None else ()):
        for lock in held((frame,)):
            if want is not None and want.same(lock):
                return lock, depth
    return None


def _lock(frame: Frame, name: str, line: int) -> Lock:
    owner = frame.name.rpartition(".")[0].partition(".<locals>")[0]
    of = owner if name.startswith(("self.", "cls.")) else ""
    return Lock(name, f"{frame.file} {of}", f"{frame.short or frame.file}:{line}")
