"""The thread in which a rank runs its program: not always the main thread.

Ray Train calls the training function in a thread of a worker whose main thread serves Ray
(ray/_private/worker.py `main_loop`), and others do alike. There the main thread has no frame of
the user's code or of torch, only of the framework, and another thread has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import is_library, own_package, package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model import Frame


def program_thread(stacks: Sequence[Sequence[Frame]]) -> int:
    """Return the index of the thread that runs the program, of stacks with the main one first."""
    if not stacks or not _serves(stacks[0]):
        return 0
    programs = [index for index, stack in enumerate(stacks) if _has_user_code(stack)]
    return next((index for index in programs if _uses_torch(stacks[index])), (*programs, 0)[0])


def _serves(stack: Sequence[Frame]) -> bool:
    return own_package(stack) is not None and not _uses_torch(stack)


def _has_user_code(stack: Sequence[Frame]) -> bool:
    return any(not is_library(frame) for frame in stack)


def _uses_torch(stack: Sequence[Frame]) -> bool:
    return any(package(frame.file) == "torch" for frame in stack if not frame.native)
