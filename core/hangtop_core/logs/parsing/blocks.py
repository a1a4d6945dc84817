"""Messages of several lines: tracebacks, crashes that Python reports, torchrun's summary.

A block takes lines of one stream until a line does not belong to it.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Protocol

from hangtop_core.logs.meaning.known import LAUNCHERS, recognise
from hangtop_core.logs.meaning.life import BAR
from hangtop_core.logs.parsing import drawn
from hangtop_core.logs.parsing.own_words import named_alone
from hangtop_core.logs.parsing.record import ending, fill, kept
from hangtop_core.logs.parsing.stamp import stamp
from hangtop_core.model.file_log import Call, Part, Record
from hangtop_core.text.clean import clean

MAX_LINES = 2000
"""Maximum number of lines of a block."""
MAX_CHARS = 1 << 20
"""Maximum number of characters of a block: lines may be long, and streams many."""
MAX_CRASH_LINES = 11_000
"""Maximum number of lines of faulthandler: up to 100 threads of 100 frames."""
MAX_BLANKS = 3
MAX_CALLS = 200
"""Maximum number of frames of a traceback that are kept."""

_THREAD = ("Thread 0x", "Current thread", "Extension modules:")
"""Beginnings of lines that end the frames of a thread in faulthandler's output."""
_FRAME = re.compile(
    r'\s*(?:\| *)?File "([^"\n]{1,1000})", line (\d{1,9})(?:, in|, in | in) ?(.{0,200})'
)
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)(?::\s|:$|$)")
"""The end of frames without a traceback's header: `print_stack` and loggers print such, too."""
HOW = (
    ("thread", re.compile(r"Exception in thread (?P<thread>.{1,60}?)(?: \(.*\))?:\s*$")),
    ("child", re.compile(r"Process (?P<process>[^:]{1,60}):\s*$")),
    ("ignored", re.compile(r"Exception ignored |--- Logging error ---|Exception in callback ")),
    ("task", re.compile(r"future: <(?:Task|Future) |handle: <|message: Task exception was never")),
    ("chained", re.compile("|".join(drawn.CHAINED))),
    ("spawn", re.compile(r"-- Process (?P<rank>\d{1,7}) terminated with the following error:")),
    (
        "logged",
        re.compile(r".*?(?:(?:^|[\s\[|:(-])(?:ERROR|WARN(?:ING)?|CRITICAL|EXCEPTION)\b|Warning: )"),
    ),
)
"""The printer of a traceback, by the line before it. Python: it ended only a thread, or nothing, or
a process of multiprocessing, which may be a rank or a child of one; or it is chained to the one
before. torch.multiprocessing: it ended a process. A logger or a warning: any program can go on
after these. One more value is `hook`: torch's own, for what ends the main thread."""
_TELLS = re.compile(r"error|exception|fail|crash|warn|critical|caught", re.IGNORECASE)
"""Words in a line that may belong to the printer of the following traceback; other lines may be of
any process."""
FATAL = frozenset({"hook", "spawn"})
"""Printers that only report a rank's certain end."""
GOES_ON = frozenset({"thread", "ignored", "task"})
"""Printers of errors that end no rank."""

_GOES_ON = (
    " ",
    "\t",
    "frame #",
    "Exception raised from",
    "CUDA kernel errors",
    "For debugging consider",
    "Compile with",
    "Last error:",
    "nccl",
    "NET/",
    "Search for",
    "Device-side assert",
    "GPU ",
)
"""Beginnings of lines that continue the message of an exception."""


class Block(Protocol):
    """Lines that belong together."""

    lines: list[str]

    def take(self, line: str) -> bool:
        """Take the next line of the stream; return False if it does not belong to this block."""
        ...

    def records(self) -> list[Record]:
        """Return the records of the block, once it is over."""
        ...


class Traceback:
    """A Python traceback with all exceptions chained to it."""

    def __init__(
        self, order: int, line: str, own: bool, before: str = "", cut: bool = False
    ) -> None:
        """Begin with the traceback's first line.

        Args:
            order: number of the line.
            line: the line.
            own: whether torch's hook has printed every line.
            before: the line before it.
            cut: whether it is a frame whose preceding lines are missing: then it counts only if an
                error follows.
        """
        self.order = order
        self.lines: list[str] = []
        self.exceptions: list[str] = []
        self._own = own
        self._before = before
        self._cut = cut
        self._indent = 0
        self._width = 0
        """Width of its boxes."""
        self._blanks = 0
        self._chars = len(line)
        self._link = ""
        """The sentence that chains the next exception to this one."""
        self._begin(line)
        self.lines.append(line)

    def _begin(self, line: str) -> None:
        """Begin the frames of the first exception, or of a chained one."""
        self.look = drawn.look_of(line)
        self._indent = drawn.indent_of(line)
        if self.look == "box":
            self._width = len(line.rstrip()) - self._indent
        self._inside = drawn.Inside(self.look, self.exceptions)
        self._until: int | None = None
        """Number of lines up to the end of the first exception of a group."""
        self.in_frames = True

    def take(self, line: str) -> bool:
        """Take the next line."""
        self._chars += len(line)
        if len(self.lines) >= MAX_LINES or self._chars > MAX_CHARS:
            return False
        text = line[self._indent :] if line[: self._indent].isspace() else line
        if drawn.is_row(text, self.look) and not drawn.begins(text):
            return self._row(line, text)
        if self.in_frames:
            return self._frame(line, text)
        return self._after(line, text)

    def _row(self, line: str, text: str) -> bool:
        self.lines.append(line)
        before = self._inside.first
        if self._inside.take(text):
            self.in_frames, self._blanks, self._link = False, 0, ""
        if self._inside.first != before:
            self._until = len(self.lines)
        return True

    def _frame(self, line: str, text: str) -> bool:
        if drawn.opens(text):
            # Another traceback begins inside: two processes print here without prefixes.
            return False
        if text.startswith((" ", "\t")):
            self.lines.append(line)
            return True
        if not (_ERROR if self._cut else drawn.EXCEPTION).match(text):
            return False
        self.lines.append(line)
        self.exceptions.append(text.rstrip())
        self.in_frames, self._blanks, self._link = False, 0, ""
        return True

    def _after(self, line: str, text: str) -> bool:
        if not text.strip():
            self._blanks += 1
            return self._blanks < MAX_BLANKS
        chained = self._link in drawn.CHAINED
        link = f"{self._link} {text.strip()}".lstrip()
        if any(sentence == link or sentence.startswith(f"{link} ") for sentence in drawn.CHAINED):
            self._link = link
        elif drawn.opens(text):
            if not chained and not text.startswith("Original "):
                return False
            self._begin(line)
        elif self._link or not self._goes_on(text):
            return False
        elif self._is_wrapped(text):
            joint = drawn.joint(self.lines[-1][self._indent :], self._width)
            self.exceptions[-1] += joint + text.rstrip()
        else:
            self.exceptions[-1] += "\n" + text.rstrip()
        self.lines.append(line)
        return True

    def _goes_on(self, text: str) -> bool:
        if self._own:
            return not text.startswith("[") or self._is_wrapped(text)
        if self._blanks or BAR.match(text):
            return False
        if self.look == "box" and self._indent and text.startswith(" "):
            return False  # the next line is indented less
        return text.startswith(_GOES_ON) or self._is_wrapped(text)

    def _is_wrapped(self, text: str) -> bool:
        above = self.lines[-1][self._indent :]
        below = self.look == "box" and not drawn.is_row(above, "box")
        return below and drawn.wraps(above, text, self._width)

    def records(self) -> list[Record]:
        """Return one record, of the last exception, with the content of all."""
        if self._cut and not self.exceptions:
            return []
        exception = self.exceptions[-1] if self.exceptions else "(its end is not here)"
        part, cause, means, fields = _meaning(self.exceptions)
        if self._inside.first is not None:
            exception = self.exceptions[self._inside.first]
            group = next(filter(drawn.holds_others, self.exceptions), "")
            fields = {**fields, "group": clean(group, 200)}
        elif len(self.exceptions) > 1:
            first = self.exceptions[0].partition("\n")[0]
            fields = {**fields, "first": clean(first, 200)}
        if not self.exceptions and part == "root":
            part = "error"
        how, names = _how(self._own, self._before)
        code = fields.get("known", "")
        launcher = code in LAUNCHERS
        named = named_alone(self._before[:400]) if _TELLS.search(self._before[:400]) else None
        names |= {"named": str(named)} if named is not None else {}
        return [
            Record(
                code if launcher else "traceback",
                part,
                clean(exception.partition("\n")[0], 400),
                0,
                self.order,
                means=means,
                cause=cause,
                fields={**fields, **names},
                lines=kept(self.lines),
                calls=() if launcher else self._calls(),
                how=how,
            )
        ]

    def _calls(self) -> tuple[Call, ...]:
        """Return the frames; for a group those of its first exception."""
        lines = self.lines[: self._until]
        if self.look == "box":
            return tuple(islice(drawn.frames(lines, self._indent), MAX_CALLS))
        return _calls(lines, backwards=False)


class Crash:
    """The output of faulthandler: `Fatal Python error`, and the stack of every thread.

    The newest thread is printed first, and the crashed one under `Current thread`.
    """

    def __init__(self, order: int, line: str) -> None:
        self.order = order
        self.lines = [line]
        self._chars = len(line)

    def take(self, line: str) -> bool:
        """Take the next line."""
        inside = line.startswith(("  File ", "  ...", "Thread 0x", "Current thread", "  <no "))
        inside = inside or not line.strip() or line.startswith("Extension modules:")
        self._chars += len(line)
        if not inside or len(self.lines) >= MAX_CRASH_LINES or self._chars > MAX_CHARS:
            return False
        self.lines.append(line)
        return True

    def records(self) -> list[Record]:
        """Return one record."""
        match = recognise(self.lines[0])
        row, fields = match if match is not None else (None, {})
        calls = _calls(self._crashed(), backwards=True)
        return [
            Record(
                "SEGV",
                "root",
                clean(self.lines[0], 400),
                0,
                self.order,
                means=fill(row.means, fields) if row is not None else "",
                cause=row.cause if row is not None else None,
                fields=fields,
                lines=kept(self.lines),
                calls=calls,
            )
        ]

    def _crashed(self) -> list[str]:
        """Return the lines of the crashed thread; all lines if none is marked so."""
        lines = self.lines
        begin = next((at for at, line in enumerate(lines) if line.startswith("Current thread")), -1)
        if begin < 0:
            return lines
        ends = range(begin + 1, len(lines))
        end = next((at for at in ends if lines[at].startswith(_THREAD)), len(lines))
        return lines[begin:end]


class Summary:
    """torchrun's final report: every failed rank, and the first one.

    Source: ChildFailedError.format_msg of torch/distributed/elastic/multiprocessing/errors, whose
    first failure is the first by the clock, whatever its cause.
    """

    _KEY = re.compile(r"\s+(time|host|rank|exitcode)\s*: (.*)")
    _RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
    _EXIT = re.compile(r"(-?\d+) \(pid: (\d+)\)")

    def __init__(self, order: int, line: str, near: float) -> None:
        self.order = order
        self.lines = [line]
        self._chars = len(line)
        self._near = near

    def take(self, line: str) -> bool:
        """Take the next line; a line of equal signs is the last."""
        self._chars += len(line)
        full = len(self.lines) >= MAX_LINES or self._chars > MAX_CHARS
        if full or self.lines[-1].startswith("====="):
            return False
        self.lines.append(line)
        return True

    def records(self) -> list[Record]:
        """Return one record for every rank that it names."""
        entries: list[dict[str, str]] = []
        for line in self.lines:
            if re.match(r"\[\d+\]:", line.strip()):
                entries.append({})
            match = self._KEY.match(line)
            if match and entries:
                entries[-1].setdefault(match[1], match[2].strip())
        return [record for record in map(self._record, entries) if record is not None]

    def _record(self, entry: dict[str, str]) -> Record | None:
        rank = self._RANK.match(entry.get("rank", ""))
        left = self._EXIT.match(entry.get("exitcode", ""))
        if rank is None or left is None:
            return None
        status = int(left[1])
        fields = {
            "rank": rank[1],
            "local": rank[2],
            "exit": left[1],
            "pid": left[2],
            "host": clean(entry.get("host", ""), 100),
        }
        part: Part = "exit" if status >= 0 else "cascade" if status == -15 else "root"
        text = f"rank {rank[1]} (pid {left[2]}) left with {ending(status)}"
        return Record(
            "T16",
            part,
            text,
            0,
            self.order,
            means=f"ended by {ending(status)}, says torchrun"
            if status < 0
            else f"left with {ending(status)}, says torchrun",
            cause="rank-crashed" if part == "root" else None,
            fields=fields,
            lines=(text,),
            at=stamp(entry.get("time", ""), self._near),
        )


def _meaning(exceptions: list[str]) -> tuple[Part, str | None, str, dict[str, str]]:
    """Return the part, the cause and the meaning of exceptions, and their fields."""
    match = recognise("\n".join(exceptions))
    if match is None or match[0].code == "E":
        return "root", None, "", {}
    row, fields = match
    return row.part, row.cause, fill(row.means, fields), {**fields, "known": row.code}


def _how(own: bool, before: str) -> tuple[str, dict[str, str]]:
    """Return the printer of a traceback, and what the line before it names."""
    for how, pattern in HOW[:1] if own else HOW:
        match = pattern.match(before[:400])
        if match is not None:
            return how, match.groupdict()
    return "hook" if own else "", {}


def _calls(lines: list[str], backwards: bool) -> tuple[Call, ...]:
    matches = [match for match in map(_FRAME.match, lines) if match is not None]
    calls = [Call(clean(m[1], 400), int(m[2]), clean(m[3], 120)) for m in matches[:MAX_CALLS]]
    return tuple(reversed(calls)) if backwards else tuple(calls)
