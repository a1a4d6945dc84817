"""Signs of life: lines that tell that who has printed an error went on after it. Pure.

A rank may catch an exception, print it and go on. What it prints later tells; what an ending
process prints does not: warnings of destructors, of torch's C++ side, of the resource tracker, more
errors.
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
"""Characters after an error that are looked at."""
OPEN = 8
"""Errors of one process for whose signs of life is looked at the same time."""

BAR = re.compile(r"\s*\d{1,9}(?:%\||(?:/\d{1,9}|it) \[)")
"""A progress bar (tqdm's, without a description), which may go on behind an exception."""
_DYING = re.compile(
    r"(?!\s+(?:INFO|DEBUG)\s)\s|$|\[[WEF]\d{3,4} |[WEF]\d{4} |Exception (?:ignored|in|raised)"
    r"|<omitting |wandb: "
    r"|During handling|The above exception|what\(\): |terminate called|frame #|-{5}|={5}"
    r"|\*{3}|srun: |slurmstepd: "
    r"|.*(?:resource_tracker|destroy_process_group|process group has NOT been|leaked |Warning: )"
    r"|.*(?:^|[\s\[|:-])(?:ERROR|CRITICAL|FATAL|EXCEPTION)[\s\]|:]"
)
"""Beginnings of lines that an ending process may print, too. What is moved to the right goes on
with the line above it, but for what rich logs in the same second."""


class Watch:
    """What one process prints after one error."""

    __slots__ = ("chars", "lines", "said", "until")

    def __init__(self) -> None:
        self.lines = 0
        self.chars = 0
        self.until: float | None = None
        self.said = ""

    def after(self) -> After | None:
        """What it has printed; None where that is nothing."""
        if not self.lines:
            return None
        return After(self.lines, self.chars, self.until, clean(self.said, 200))


class Life:
    """Looks at what one process prints after its errors."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: list[Watch] = []

    @property
    def wanted(self) -> bool:
        """Whether there is an error after which lines are looked at."""
        return bool(self._open)

    def watch(self) -> Watch:
        """Look at the lines from here on."""
        one = Watch()
        self._open = [*self._open[-OPEN + 1 :], one]
        return one

    def take(self, line: str, near: float, time: str) -> None:
        """Take the next line of this process that is not known, and the time put before it."""
        if _DYING.match(line) and not BAR.match(line):
            return
        at = stamp(line, near) or stamp(time, near)
        for one in tuple(self._open):
            one.lines += 1
            one.chars += len(line) + 1
            one.said = one.said or line
            if at is not None:
                one.until = max(at, one.until or at)
            if one.chars >= CHARS:
                self._open.remove(one)


def process_of(origin: Origin) -> tuple[object, ...]:
    """What the streams of one process have in common, output, errors and torch's own prefix."""
    number = origin.local if origin.local is not None else origin.rank
    return number, origin.local is None, origin.node, origin.task, origin.group
