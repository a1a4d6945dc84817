"""Properties of single frames: plain name, owner of the code, notation."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hangtop_core.model.frame import Frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STDLIB = re.compile(
    r"/lib(64)?/python\d(\.\d+)?/|/python\d+\.zip/"
    r"|^<(?!dynamic-code>|stdin>|ipython-input|doctest )"
)
"""File names of Python's own code or of code that a library made. Code sent by cloudpickle (3.1)
and code that was typed in do not count."""
_PACKAGE = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+)")
_TORCH = re.compile(r"(?:^|/)torch/(?:\w+/)*+\w++\.py$")
_DEBUGGER = re.compile(r"/debugpy/(?:_vendored|server|common)/|/debugpy/[^/]+$")
"""Files of debugpy; editors bring it in a folder of their own."""
_SCRIPT = re.compile(r"/s?bin/[^/]+$")
_OWN_PACKAGES = frozenset({"hangtop"})
"""Packages whose files are training scripts: the demo jobs."""

WRAPPERS = frozenset(
    {
        "__call__",
        "_call_impl",
        "_fn",
        "_wrap",
        "_wrapped_call_impl",
        "_wrapper",
        "decorate_context",
        "inner",
        "wrapped",
        "wrapper",
    }
)
"""Functions that only pass a call on: the frame inside them says more."""


@lru_cache(maxsize=8192)
def package(file: str) -> str | None:
    """Return the package that a file belongs to; None for the user's own code.

    Return `python` for the standard library and frozen modules, `script` for commands in a bin
    folder.
    """
    installed = _PACKAGE.search(file)
    if installed:
        name = installed[1].removesuffix(".py")
        return None if name in _OWN_PACKAGES else name
    if _STDLIB.search(file):
        return "python"
    if _TORCH.search(file):
        return "torch"
    if _DEBUGGER.search(file):
        return "debugpy"
    return "script" if _SCRIPT.search(file) else None


def is_library(frame: Frame) -> bool:
    """Return whether the frame belongs to Python, torch or an installed package, or is native."""
    return frame.native or package(frame.file) is not None


@lru_cache(maxsize=8192)
def plain_name(name: str) -> str:
    """Return the last part of a function's name.

    py-spy gives qualified names from CPython 3.11 on (`Queue.get`, `locks.<locals>.a`) and plain
    ones before (`get`): rules compare this part only.
    """
    return name.rpartition(".")[2]


def since_fork(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames of a stack that are its process's own, innermost first.

    A child that multiprocessing forked (not spawned) keeps the frames of its parent below its own,
    at the place where the parent started it. The child never returns to them.
    """
    inner = ""
    for depth, frame in enumerate(stack):
        if frame.native:
            continue
        name = plain_name(frame.name)
        if (inner, name) == ("_bootstrap", "_launch") and frame.file.endswith("popen_fork.py"):
            return stack[:depth]
        inner = name
    return stack


def own_package(stack: Sequence[Frame]) -> str | None:
    """Return the installed package that is the training code, where no frame is the user's own.

    That is the package of the outermost frame which is neither Python's nor a command's nor
    torch's: `python -m mytraining`. None when the stack has frames of the user's own.
    """
    package_name = None
    for frame in stack:
        if frame.native:
            continue
        name = package(frame.file)
        if name is None:
            return None
        if name not in ("python", "script", "torch"):
            package_name = name
    return package_name


def library_run(stack: Sequence[Frame]) -> Sequence[Frame]:
    """Return the innermost frames, up to but without the first one of the user's own code."""
    own = own_package(stack)
    for depth, frame in enumerate(stack):
        if not is_library(frame) or (own and package(frame.file) == own):
            return stack[:depth]
    return stack


def site(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's code, else the innermost frame outside libraries."""
    if not stack:
        return None
    run = len(library_run(stack))
    return stack[run] if run < len(stack) else stack[0]


def where(frame: Frame | None) -> str:
    """Return `train.py:41 (main)`, for sentences."""
    if frame is None:
        return "a place that is not known"
    return f"{place(frame)} ({frame.name})"


def place(frame: Frame) -> str:
    """Return `train.py:41`, for columns."""
    return f"{frame.short or frame.file}:{frame.line}"


LOOPS = ("for ", "while ", "async for ")
"""Beginnings of the lines of loops."""
ENDLESS = re.compile(r"while\s*\(?\s*(True|1)\s*\)?\s*:")
Loop = tuple[Frame, int, str]
"""The frame that is in a loop, and the loop's line and text."""


def endless_loops(stack: tuple[Frame, ...]) -> Iterator[Loop]:
    """Yield the loops around a stack that only a statement inside ends, outermost first."""
    for frame in reversed(stack):
        for line, text in frame.within or ():
            if ENDLESS.match(text):
                yield frame, line, text
