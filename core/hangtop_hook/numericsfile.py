"""The file of one rank with its non-finite values: JSON lines, described in docs/numerics.md.

Lines are appended as they come, so that they exist however the rank ends, and while it hangs. The
file is made when the first batch is over: ranks know their number by then.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import processes

VARIABLE = "HANGTOP_NUMERICS"
SCHEMA = "hangtop.numerics/1"
FRAMES = 21
SEEN_S = 30.0
"""Seconds between two lines with the rank's current batch."""
MAX_TRACED = 256 << 20
"""Limit in bytes of traced batches."""


class Settings(NamedTuple):
    """The settings of the search."""

    frames: int = FRAMES
    trace: Tuple[Tuple[int, int], ...] = ()
    abort_after: Optional[int] = None
    stop: bool = False

    def traces(self, batch: int) -> bool:
        """Return whether a batch is traced."""
        return any(first <= batch <= last for first, last in self.trace)


def to_text(settings: Settings) -> str:
    """Return the value of VARIABLE."""
    return json.dumps(settings._asdict(), separators=(",", ":"))


def from_environment(environ: Mapping[str, str]) -> Optional[Settings]:
    """Return the settings in VARIABLE; None where it is not set.

    Raise ValueError for a value that `to_text` does not write.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    try:
        values = json.loads(text)
        trace = tuple((int(first), int(last)) for first, last in values["trace"])
        after = values["abort_after"]
        return Settings(
            int(values["frames"]),
            trace,
            None if after is None else int(after),
            bool(values["stop"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError("%s is none of ours: %r" % (VARIABLE, error)) from None


class File:
    """The file of this process, created with its first line."""

    def __init__(self, directory: str, settings: Settings) -> None:
        self._folder = os.path.join(directory, "numerics")
        self._settings = settings
        self._file: Optional[int] = None
        self._path = ""
        self._rank: Optional[int] = None
        self._said_at = -SEEN_S
        self._over: Optional[int] = None
        self._told: Optional[int] = None
        """The last finished batch, and the last one that was written."""
        self._pid = 0
        """The process that writes at its end, rather than a child that it forks."""
        self._said = False
        self._room = MAX_TRACED

    def record_batch(self, batch: int) -> None:
        """Record from time to time that a batch is over, and the last one when the program ends."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            atexit.register(self.last)
        self._over = batch
        if time.monotonic() - self._said_at >= SEEN_S:
            self._said_at = time.monotonic()
            self._told = batch
            self._write({"type": "seen", "batch": batch, "at": _now()})

    def last(self) -> None:
        """Record the last batch, as watching ends with it."""
        if self._over != self._told and os.getpid() == self._pid:
            self._told = self._over
            self._write({"type": "seen", "batch": self._over, "at": _now()})

    def note(self, text: str) -> None:
        """Record why watching ended."""
        self._write({"type": "note", "text": text[:400], "at": _now()})

    def expected(self, bad: Any) -> bool:
        """Return whether the program expects it: GradScaler finds its scale by overflows."""
        return bool(bad.kind == "scaled gradient")

    def record_bad(self, bad: Any, frames: Sequence[Any]) -> None:
        """Record the first value of a kind, with the frames before it, and print it in one line."""
        head = {
            "type": "first",
            "kind": bad.kind,
            "what": bad.what,
            "role": bad.measure.role,
            "tensor": bad.measure.name,
            "at": _now(),
            "expected": self.expected(bad),
            **_call(bad.frame),
        }
        self._write({**head, "frames": [_frame(frame) for frame in frames]})
        if not self.expected(bad) and not self._said:
            self._said = True
            self._say(self.sentence(bad))

    def trace(self, frames: Sequence[Any]) -> None:
        """Record frames of traced batches."""
        for frame in frames:
            if self._settings.traces(frame.batch) and self._room > 0:
                self._room -= self._write({"type": "frame", **_frame(frame)})
                if self._room <= 0:
                    self.note("no more traced batches: %d MB are written" % (MAX_TRACED >> 20))

    def sentence(self, bad: Any) -> str:
        """Return in words what was found, and where."""
        name, measure = bad.frame.name, bad.measure
        module = name.module or name.root or "a module"
        what = "%s of %s" % (measure.name, module)
        if measure.role == "weight" or bad.frame.kind == "step":
            what = "%s.%s" % (name.module, measure.name) if name.module else measure.name
        where = ""
        if bad.frame.site is not None:
            where = ", called at %s:%d" % (bad.frame.site[0].co_filename, bad.frame.site[1])
        subject = "rank %d" % self._rank if self._rank is not None else "pid %d" % os.getpid()
        return "%s: the first %s is in %s at batch %d%s" % (
            subject,
            bad.what,
            what,
            bad.frame.batch,
            where,
        )

    def _say(self, text: str) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.write("hangtop: %s; more in %s\n" % (text, self._path or "no file"))

    def _write(self, record: Dict[str, Any]) -> int:
        """Append a line and return its length; on a full disk only the line is lost."""
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with contextlib.suppress(OSError):
            if self._file is None:
                self._open()
            if self._file is not None:
                os.write(self._file, line)
        return len(line)

    def _open(self) -> None:
        self._rank = _rank()
        node = os.uname().nodename.split(".")[0]
        subject = "pid%d" % os.getpid() if self._rank is None else "rank%d" % self._rank
        name = "%s-%s-%d.jsonl" % (subject, node, os.getpid())
        self._path = os.path.join(self._folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        header = {
            "schema": SCHEMA,
            "rank": self._rank,
            "node": node,
            "pid": os.getpid(),
            "attempt": os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
            "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
            "at": _now(),
            **self._settings._asdict(),
        }
        os.write(self._file, json.dumps(header, separators=(",", ":")).encode() + b"\n")


def _rank() -> Optional[int]:
    """Return the number of this rank: from torch, else from variables."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:
        return processes.rank_in_environment()
    return processes.rank_in_environment()


def _now() -> float:
    return round(time.time(), 3)


def _call(frame: Any) -> Dict[str, Any]:
    """Return the module of a call, and where the program calls it."""
    name = frame.name
    described = {
        "batch": frame.batch,
        "way": frame.kind,
        "module": name.module,
        "module_class": name.kind,
        "root": name.root,
    }
    if frame.site is not None:
        code, line = frame.site
        described.update(file=code.co_filename, line=line, function=code.co_name)
    return described


def _frame(frame: Any) -> Dict[str, Any]:
    rows: List[List[Any]] = [
        [
            measure.role,
            measure.name,
            list(measure.shape),
            _number(measure.low),
            _number(measure.high),
        ]
        for measure in frame.measures
    ]
    return {**_call(frame), "measures": rows}


def _number(value: Any) -> Any:
    """Return a number of four digits, or a word, as JSON has no nan; None if it was not read."""
    if not isinstance(value, float):
        return None
    return float("%.4g" % value) if math.isfinite(value) else str(value)
