"""Stacks of Python processes in cores: by pystack, and by py-spy if that fails.

pystack (1.4 and later) reads cores of crashes and of gcore, and native frames in a tenth of gdb's
time for torch's libraries. py-spy 0.4 reads cores of crashes only, and panics on a cut core, which
is reported as that. Both run as processes of their own, with limits.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import sysconfig
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hangtop_core.model.frame import Frame
from hangtop_core.model.snapshot import Local
from hangtop_probe.stacks.sources import shorten

if TYPE_CHECKING:
    from hangtop_probe.wire.tools import Done, Tools

SECONDS = 60.0
"""For each of the two readers."""
MAX_TEXT = 2000
MAX_VALUE = 200
"""Maximum number of characters of names of functions and files, and of names and values of
variables."""
_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from hangtop_core.cores.pythonread import main; main({core!r}, {executable!r}, {native!r})"
)
_OUTSIDE = ("env", "-u", "DEBUGINFOD_URLS")
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)(.+)")
EXTRA = "pip install 'hangtop[core-files]'"


class _Local(Struct):
    name: str = "?"
    repr: str | None = ""
    arg: bool = False


class _Frame(Struct):
    name: str = "?"
    filename: str | None = ""
    line: int = 0
    is_entry: bool = True
    locals: list[_Local] | None = None


class _Thread(Struct):
    os_thread_id: int | None = None
    thread_name: str | None = None
    owns_gil: bool = False
    frames: list[_Frame] = []
    native: list[_Frame] = []


class _Found(Struct):
    threads: list[_Thread] | None = None
    missing: bool = False
    error: str | None = None


class PythonThread(Struct, frozen=True):
    """A thread that runs Python."""

    tid: int
    name: str | None
    gil: bool
    frames: tuple[Frame, ...]
    """Innermost first."""
    entries: tuple[bool, ...]
    """For every frame: whether the interpreter's loop was entered anew for it."""
    locals: tuple[tuple[Local, ...], ...] = ()
    native: tuple[Frame, ...] = ()
    """Native frames, if the reader of the core gave them."""


class Python(Struct, frozen=True):
    """The Python stacks of a core."""

    threads: Mapping[int, PythonThread] = {}
    by: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def has_native(self) -> bool:
        """Whether native frames were read, too."""
        return any(thread.native for thread in self.threads.values())


def read(tools: Tools, core: str, executable: str, *, with_native: bool) -> Python:
    """Read the Python frames of a core, and native ones if pystack does it.

    Failures are in `problems`.
    """
    code = _CODE.format(path=sys.path, core=core, executable=executable, native=with_native)
    result, why = _by(tools, [*_OUTSIDE, sys.executable, "-I", "-c", code], _Found)
    if result is not None and result.threads is not None:
        return Python(_threads(result.threads), by="pystack")
    missing = result is not None and result.missing
    problems = [
        f"pystack is not installed, which reads more cores than py-spy: {EXTRA}"
        if missing
        else f"pystack: {(result.error if result is not None else None) or why}"
    ]
    spy = py_spy()
    if spy is None:
        return Python(problems=(*problems, "py-spy is not on this machine"))
    rows, why = _by(tools, [spy, "dump", "--json", "--locals", "--core", core], list[_Thread])
    if rows is None:
        return Python(problems=(*problems, f"py-spy: {why}"))
    return Python(_threads(rows), by="py-spy")


def py_spy() -> str | None:
    """Return the py-spy that came with hangtop, or the one on PATH."""
    scripts = sysconfig.get_path("scripts")
    return shutil.which("py-spy", path=scripts) or shutil.which("py-spy")


def _by(tools: Tools, argv: list[str], kind: Any) -> tuple[Any, str]:
    """Run a reader; return its result, or None and why."""
    try:
        done = tools.run(argv, SECONDS, threading.Event())
    except OSError as error:
        return None, f"does not start: {error.strerror}"
    try:
        return msgspec.convert(json.loads(done.out), kind), ""
    except (ValueError, RecursionError):
        return None, _why(done)


def _why(done: Done) -> str:
    if done.timed_out:
        return f"took more than {SECONDS:g} s and was ended"
    if done.code is not None and done.code < 0:
        return f"broke down on it (signal {-done.code})"
    errors = done.err.decode("utf-8", "replace").strip().splitlines()
    if any("panicked at" in line for line in errors):
        return "broke down on it: a part of the memory that it needs is missing"
    return (errors[0] if errors else f"ended with status {done.code} and said nothing")[:300]


def _threads(rows: list[_Thread]) -> dict[int, PythonThread]:
    threads = {}
    for row in rows:
        if row.os_thread_id is None:
            continue
        threads[row.os_thread_id] = PythonThread(
            tid=row.os_thread_id,
            name=row.thread_name,
            gil=row.owns_gil,
            frames=tuple(map(_frame, row.frames)),
            entries=tuple(frame.is_entry for frame in row.frames),
            locals=tuple(
                tuple(
                    Local(local.name[:MAX_VALUE], (local.repr or "")[:MAX_VALUE], local.arg)
                    for local in frame.locals or ()
                )
                for frame in row.frames
            ),
            native=tuple(map(native_frame, row.native)),
        )
    return threads


def native_frame(frame: _Frame) -> Frame:
    """Return a native frame in pystack's naming."""
    file = (frame.filename or "")[:MAX_TEXT]
    line = min(max(frame.line, 0), 2**31 - 1)
    return Frame(frame.name[:MAX_TEXT], file, file.rpartition("/")[2], line, native=True)


def _frame(frame: _Frame) -> Frame:
    file = (frame.filename or "")[:MAX_TEXT]
    line = min(max(frame.line, 0), 2**31 - 1)
    library = _STANDARD.search(file)
    return Frame(frame.name[:MAX_TEXT], file, library[1] if library else shorten(file), line)
