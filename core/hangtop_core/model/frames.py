"""What single frames say: their plain name, whose code they are, how they are written down."""

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
"""Code of no file is Python's own or made by a library, but for what cloudpickle (3.1) has brought
and what was typed."""
_PACKAGE = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+)")
_TORCH = re.compile(r"(?:^|/)torch/(?:\w+/)*+\w++\.py$")
_DEBUGGER = re.compile(r"/debugpy/(?:_vendored|server|common)/|/debugpy/[^/]+$")
"""Of an editor, which brings it along in a folder of its own."""
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
    """The package a file belongs to; None for the user's own code.

    The standard library and frozen modules are `python`, commands in a bin folder `script`.
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
    """Whether the frame is of Python, torch or an installed package, or native."""
    return frame.native or package(frame.file) is not None


@lru_cache(maxsize=8192)
def plain_name(name: str) -> str:
    """Last part of a function's name.

    py-spy gives qualified names from CPython 3.11 on (`Queue.get`, `locks.<locals>.a`) and
    plain ones before (`get`): rules compare this part only.
    """
    return name.rpartition(".")[2]


def since_fork(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames of a stack that are its process's own, innermost first.

    A child that was forked by multiprocessing (not spawned) keeps below them those of its parent,
    at the place where that started it: it never goes on there.
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
    """The installed package that is the training code, where no frame is of the user's own.

    That is the package of the outermost frame which is neither Python's nor a command's nor
    torch's: `python -m mytraining`. None when the stack has frames of the user's own.
    """
    found = None
    for frame in stack:
        if frame.native:
            continue
        name = package(frame.file)
        if name is None:
            return None
        if name not in ("python", "script", "torch"):
            found = name
    return found


def library_run(stack: Sequence[Frame]) -> Sequence[Frame]:
    """The innermost frames up to the first one of the user's own code, which is left out."""
    own = own_package(stack)
    for depth, frame in enumerate(stack):
        if not is_library(frame) or (own and package(frame.file) == own):
            return stack[:depth]
    return stack


def site(stack: Sequence[Frame]) -> Frame | None:
    """Where the user's code is: its innermost frame, else the innermost one of no library."""
    if not stack:
        return None
    run = len(library_run(stack))
    return stack[run] if run < len(stack) else stack[0]


def where(frame: Frame | None) -> str:
    """`train.py:41 (main)`, as sentences name a place in code."""
    if frame is None:
        return "a place that is not known"
    return f"{place(frame)} ({frame.name})"


def place(frame: Frame) -> str:
    """`train.py:41`, for columns."""
    return f"{frame.short or frame.file}:{frame.line}"


LOOPS = ("for ", "while ", "async for ")
"""How the line of a loop begins."""
ENDLESS = re.compile(r"while\s*\(?\s*(True|1)\s*\)?\s*:")
Loop = tuple[Frame, int, str]
"""The frame that stands in a loop, its line and its text."""


def endless_loops(stack: tuple[Frame, ...]) -> Iterator[Loop]:
    """Yield the loops around a stack that only a line in them ends, outermost first."""
    for frame in reversed(stack):
        for line, text in frame.within or ():
            if ENDLESS.match(text):
                yield frame, line, text
