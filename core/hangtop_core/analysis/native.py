"""What C frames decide that frames of Python leave open: which lock, whose GPU, in which function.

They are known only where somebody has let a rank be paused for them (`py-spy dump --native`).
Names are those of glibc 2.31 to 2.39, CPython 3.8 to 3.14, CUDA 12 and torch 2.4 to 2.13; py-spy
demangles those of C++. A kernel is launched at once, unless CUDA takes no more of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Frame
    from hangtop_core.stacks.kinds import Kind

WAITS_FOR_GPU = "waits for its GPU"
C_LOCK = "waits for a lock of C code"

_DECIDES: tuple[tuple[Kind, re.Pattern[str], str], ...] = (
    (
        "gil",
        re.compile(r"^(take_gil|PyEval_RestoreThread|PyGILState_Ensure)$"),
        "waits for the GIL",
    ),
    (
        "lock",
        re.compile(r"^(PyThread_acquire_lock(_timed)?|_PyMutex_Lock\w*)$"),
        "waits for a lock",
    ),
    (
        "work-wait",
        re.compile(
            r"^(cuda|cu)((Stream|Device|Event|Ctx)Synchronize|LaunchKernel|Free|MemFree|Memcpy)"
        ),
        WAITS_FOR_GPU,
    ),
    ("store", re.compile(r"^c10d::\w*Store::"), "waits for a key in the store"),
    (
        "work-wait",
        re.compile(r"^(c10d::.*(Work|Future)\w*::(wait|synchronize)|gloo::.*::wait(Recv|Send))"),
        "waits for outstanding communication",
    ),
    (
        "lock",
        re.compile(
            r"^(__)?(pthread_(mutex_(timed)?|rwlock_(rd|wr))lock|lll_lock_wait\w*|sem_wait)"
        ),
        C_LOCK,
    ),
)
"""In order: the first that fits any of the C frames below the innermost one of Python. CPython's
own locks, and those inside of CUDA and torch, sleep in glibc's, too, so glibc's come last."""

_PLUMBING = re.compile(
    r"(^|/)(libc|libm|libpthread|libdl|libffi|_ctypes)([-.][\w.-]*)?$"
    r"|(^|/)(ld-linux|libpython|python(?![A-Za-z_]))[\w.-]*$"
    r"|(^|/)(callproc|_ctypes|ceval\w*|methodobject|abstract|call)\.c$|^Objects/"
)
"""Files of the C library, and of the way there from Python: none that a program would name."""


def decided(natives: Sequence[Frame]) -> tuple[Kind, str] | None:
    """What a thread that is inside these C frames (innermost first) waits for, where they tell."""
    for kind, pattern, text in _DECIDES:
        if any(pattern.match(frame.name) for frame in natives):
            place = called(natives) if text == C_LOCK else ""
            return kind, f"{text}, {place}," if place else text
    return None


def called(natives: Sequence[Frame]) -> str:
    """`in take_buffer (pool.c:3)`: the innermost function that is a program's; else the one of C.

    Empty without a name: where libraries have no symbols, there are addresses (`??`) only.
    """
    named = [frame for frame in natives if not frame.name.startswith(("0x", "??"))]
    own = [frame for frame in named if not _PLUMBING.search(frame.file)]
    told = (own or named)[:1]
    return f"in {_place(told[0])}" if told else ""


def _place(frame: Frame) -> str:
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.name} ({frame.short or frame.file}{line})"
