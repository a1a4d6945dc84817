"""Signs of life: lines that show that a process survived its error. Pure.

A rank may catch an exception, print it and go on. Its later lines show that; the lines of an ending
process do not: warnings of destructors, of torch's C++ side, of the resource tracker, more errors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.logs.parsing.stamp import stamp
from hangtop_core.model.file_log import After
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.model.file_log import Origin

SURVIVABLE = frozenset(
    {"traceback", "OOM", "DISK", "CUDA", "MEM", "SHM", "PORT", "T9", "T14", "T15", "G1", "G2", "G3"}
    | {"N6"}
)
"""Codes of errors that a program can catch."""
CHARS = 1 << 16
"""Maximum number of characters after an error that are examined."""
OPEN = 8
"""Maximum number of errors of one process that are watched at the same time."""

BAR = re.compile(r"\s*\d{1,9}(?:%\||(?:/\d{1,9}|it) \[)")
"""A progress bar (tqdm's, without a description), which may follow an exception in its line."""
_DYING = re.compile(
    r"(?!\s+(?:INFO|DEBUG)\s)\s|$|\[[WEF]\d{3,4} |[WEF]\d{4} |Exception (?:ignored|in|raised)"
    r"|<omitting |wandb: "
    r"|During handling|The above exception|what\(\): |terminate called|frame #|-{5}|={5}"
    r"|\*{3}|srun: |slurmstepd: "
    r"|.*(?:resource_tracker|destroy_process_group|process group has NOT been|leaked |Warning: )"
    r"|.*(?:^|[\s\[|:-])(?:ERROR|CRITICAL|FATAL|EXCEPTION)[\s\]|:]"
)
"""Beginnings of lines that an ending process may print, too. An indented line continues the line
above it, except for lines that rich logs in the same second."""


class Watch:
    """The lines of a process after one of its errors."""

    __slots__ = ("chars", "lines", "said", "until")

    def __init__(self) -> None:
        self.lines = 0
        self.chars = 0
        self.until: float | None = None
        self.said = ""

    def after(self) -> After | None:
        """Return the lines after the error; None without any."""
        if not self.lines:
            return None
        return After(self.lines, self.chars, self.until, clean(self.said, 200))


class Life:
    """The lines of one process after its errors."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: list[Watch] = []

    @property
    def wanted(self) -> bool:
        """Whether lines are examined: there was an error."""
        return bool(self._open)

    def watch(self) -> Watch:
        """Watch the lines from here on."""
        watch = Watch()
        self._open = [*self._open[-OPEN + 1 :], watch]
        return watch

    def take(self, line: str, near: float, time: str) -> None:
        """Take the next unknown line of this process, and the time put before it."""
        if _DYING.match(line) and not BAR.match(line):
            return
        at = stamp(line, near) or stamp(time, near)
        for watch in tuple(self._open):
            watch.lines += 1
            watch.chars += len(line) + 1
            watch.said = watch.said or line
            if at is not None:
                watch.until = max(at, watch.until or at)
            if watch.chars >= CHARS:
                self._open.remove(watch)


def process_of(origin: Origin) -> tuple[object, ...]:
    """Return the key that output, errors and torch's own prefix of a process share."""
    number = origin.local if origin.local is not None else origin.rank
    return number, origin.local is None, origin.node, origin.task, origin.group
