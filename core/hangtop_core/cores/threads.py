"""Merge of the native and the Python frames of a thread, as py-spy does for live processes."""

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
"""Functions of CPython that only pass a call on: a live stack omits them, too."""


class CoreThread(Struct, frozen=True):
    """A thread of a core with its native and Python frames merged."""

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
    """Return all threads of a core, the one that got the signal first."""
    native_of = (
        {tid: thread.native for tid, thread in python.threads.items()} if python.has_native else {}
    )
    native_of = {**native.threads, **native_of}
    order = dict.fromkeys((*header.threads, *python.threads, *native.threads))
    return tuple(
        _thread(tid, header.pid, native_of.get(tid, ()), python.threads.get(tid)) for tid in order
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
    """Insert Python frames at the interpreter's loops among native ones, innermost first.

    Each run of the loop stands for the frames up to the one for which it was entered. If the counts
    differ (frames were optimised away, or the stack is cut), all Python frames follow the native
    ones inside of them. Likewise if the interpreter has no names, as Debian's: its frames are then
    recognised by its file, or by having neither name nor file, as in gdb.
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
    remaining = list(zip(python.frames, python.entries, strict=True))
    for frame in native:
        if not _LOOP.match(frame.name):
            merged += _shown([frame])
            continue
        while remaining:
            python_frame, entry = remaining.pop(0)
            merged.append(python_frame)
            if entry:
                break
    return merged


def _nameless(frame: Frame) -> bool:
    """Whether a frame is one of an interpreter without names."""
    own = _INTERPRETER_FILE.fullmatch(frame.file.rpartition("/")[2]) is not None
    return frame.name == "??" and (own or not frame.file)


def _shown(frames: Sequence[Frame]) -> list[Frame]:
    return [frame for frame in frames if not _INTERPRETER.match(frame.name)]
