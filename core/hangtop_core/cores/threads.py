"""Puts the native and the Python frames of a thread together, as py-spy does for live processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.model.frame import Frame
from hangtop_core.model.snapshot import Local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.cores.elf import Header
    from hangtop_core.cores.native import Native
    from hangtop_core.cores.python import Python, PythonThread

_LOOP = re.compile(r"_PyEval_EvalFrameDefault|PyEval_EvalFrameEx|_TAIL_CALL_\w+")
_INTERPRETER_FILE = re.compile(r"(?:lib)?python\d+\.\d+\w*(?:\.so[\d.]*)?")
_INTERPRETER = re.compile(
    r"_?Py|_?TAIL_CALL|cfunction_|method_vectorcall|builtin_exec|run_mod|run_eval_code_obj|"
    r"pyrun_|pymain_|object_vacall|function_code_fastcall|slot_tp_|type_call|do_call_core|"
    r"call_function|\(anonymous\)|wrap_|vectorcall_"
)
"""Functions of CPython that only carry a call on: a live stack does not show them either."""


class CoreThread(Struct, frozen=True):
    """One thread of a core, native and Python frames together."""

    tid: int
    name: str | None = None
    gil: bool = False
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    locals: tuple[tuple[Local, ...], ...] = ()
    """For every frame; empty for native ones."""

    @property
    def python(self) -> bool:
        """Whether it runs Python."""
        return any(not frame.native for frame in self.frames)


def together(header: Header, native: Native, python: Python) -> tuple[CoreThread, ...]:
    """All threads of a core, the one that got the signal first."""
    found = {tid: one.native for tid, one in python.threads.items()} if python.has_native else {}
    found = {**native.threads, **found}
    order = dict.fromkeys((*header.threads, *python.threads, *native.threads))
    return tuple(
        _thread(tid, header.pid, found.get(tid, ()), python.threads.get(tid)) for tid in order
    )


def _thread(tid: int, pid: int, native: Sequence[Frame], python: PythonThread | None) -> CoreThread:
    name = python.name if python is not None else None
    if name is None and tid == pid:
        name = "MainThread"
    if python is None or not python.frames:
        return CoreThread(tid, name, frames=tuple(native))
    merged = merge(native, python)
    values = dict(zip(map(id, python.frames), python.locals, strict=False))
    return CoreThread(
        tid, name, python.gil, tuple(merged), tuple(values.get(id(frame), ()) for frame in merged)
    )


def merge(native: Sequence[Frame], python: PythonThread) -> list[Frame]:
    """Put Python frames where the interpreter's loop is among native ones, innermost first.

    Each run of the loop stands for the frames up to the one for which it was entered. Where the
    counts differ (frames were optimised away, or the stack is cut) all Python frames come behind
    the native ones that are inside of them. So they do where the interpreter has no names, as
    Debian's: its frames are told by its file then, or by having neither name nor file, as in gdb.
    """
    loops = [at for at, frame in enumerate(native) if _LOOP.match(frame.name)]
    if not native:
        return list(python.frames)
    if not loops or len(loops) != sum(python.entries):
        nameless = (at for at, frame in enumerate(native) if _nameless(frame))
        first = loops[0] if loops else next(nameless, 0)
        inside = native[:first]
        return [*_shown(inside), *python.frames]
    merged: list[Frame] = []
    rest = list(zip(python.frames, python.entries, strict=True))
    for frame in native:
        if not _LOOP.match(frame.name):
            merged += _shown([frame])
            continue
        while rest:
            one, entry = rest.pop(0)
            merged.append(one)
            if entry:
                break
    return merged


def _nameless(frame: Frame) -> bool:
    """Whether a frame is one of an interpreter that has no names."""
    own = _INTERPRETER_FILE.fullmatch(frame.file.rpartition("/")[2]) is not None
    return frame.name == "??" and (own or not frame.file)


def _shown(frames: Sequence[Frame]) -> list[Frame]:
    return [frame for frame in frames if not _INTERPRETER.match(frame.name)]
