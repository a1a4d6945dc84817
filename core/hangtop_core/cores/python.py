"""Stacks of Python processes in cores: by pystack, and by py-spy where that does not do.

pystack (1.4 and later) reads cores of crashes and those that gcore has taken, and native frames in
a tenth of the time that gdb takes for torch's libraries. py-spy 0.4 reads cores of crashes only,
and breaks down on one that was cut (its `panicked at` is told as that). Both run as processes of
their own, with limits.
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
"""Characters of names of functions and files, and of names and values of variables."""
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
    """One thread that runs Python."""

    tid: int
    name: str | None
    gil: bool
    frames: tuple[Frame, ...]
    """Innermost first."""
    entries: tuple[bool, ...]
    """For every frame whether the interpreter's loop was entered anew for it."""
    locals: tuple[tuple[Local, ...], ...] = ()
    native: tuple[Frame, ...] = ()
    """Native frames, where whoever read the core gave them."""


class Python(Struct, frozen=True):
    """What was found."""

    threads: Mapping[int, PythonThread] = {}
    by: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def has_native(self) -> bool:
        """Whether native frames were read, too."""
        return any(thread.native for thread in self.threads.values())


def read(tools: Tools, core: str, executable: str, *, with_native: bool) -> Python:
    """Read the Python frames of a core, and native ones where pystack does it.

    What goes wrong is among `problems`.
    """
    code = _CODE.format(path=sys.path, core=core, executable=executable, native=with_native)
    found, why = _by(tools, [*_OUTSIDE, sys.executable, "-I", "-c", code], _Found)
    if found is not None and found.threads is not None:
        return Python(_threads(found.threads), by="pystack")
    missing = found is not None and found.missing
    problems = [
        f"pystack is not installed, which reads more cores than py-spy: {EXTRA}"
        if missing
        else f"pystack: {(found.error if found is not None else None) or why}"
    ]
    spy = py_spy()
    if spy is None:
        return Python(problems=(*problems, "py-spy is not on this machine"))
    rows, why = _by(tools, [spy, "dump", "--json", "--locals", "--core", core], list[_Thread])
    if rows is None:
        return Python(problems=(*problems, f"py-spy: {why}"))
    return Python(_threads(rows), by="py-spy")


def py_spy() -> str | None:
    """The py-spy that came with hangtop, or one on PATH."""
    scripts = sysconfig.get_path("scripts")
    return shutil.which("py-spy", path=scripts) or shutil.which("py-spy")


def _by(tools: Tools, argv: list[str], kind: Any) -> tuple[Any, str]:
    """Run a reader; what it found, or None and why."""
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
    said = done.err.decode("utf-8", "replace").strip().splitlines()
    if any("panicked at" in line for line in said):
        return "broke down on it: a part of the memory that it needs is missing"
    return (said[0] if said else f"ended with status {done.code} and said nothing")[:300]


def _threads(found: list[_Thread]) -> dict[int, PythonThread]:
    threads = {}
    for one in found:
        if one.os_thread_id is None:
            continue
        threads[one.os_thread_id] = PythonThread(
            tid=one.os_thread_id,
            name=one.thread_name,
            gil=one.owns_gil,
            frames=tuple(map(_frame, one.frames)),
            entries=tuple(frame.is_entry for frame in one.frames),
            locals=tuple(
                tuple(
                    Local(local.name[:MAX_VALUE], (local.repr or "")[:MAX_VALUE], local.arg)
                    for local in frame.locals or ()
                )
                for frame in one.frames
            ),
            native=tuple(map(native_frame, one.native)),
        )
    return threads


def native_frame(frame: _Frame) -> Frame:
    """A native frame as pystack names it."""
    file = (frame.filename or "")[:MAX_TEXT]
    line = min(max(frame.line, 0), 2**31 - 1)
    return Frame(frame.name[:MAX_TEXT], file, file.rpartition("/")[2], line, native=True)


def _frame(frame: _Frame) -> Frame:
    file = (frame.filename or "")[:MAX_TEXT]
    line = min(max(frame.line, 0), 2**31 - 1)
    library = _STANDARD.search(file)
    return Frame(frame.name[:MAX_TEXT], file, library[1] if library else shorten(file), line)
