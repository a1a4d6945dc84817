"""The thread in which a rank runs its program: not always the main thread.

Ray Train calls the training function in a thread of a worker whose main thread serves Ray
(ray/_private/worker.py `main_loop`), and others do alike. There the main thread has no frame of
the user's code or of torch, only of the framework, and another thread has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.frames import is_library, own_package, package

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangtop_core.model import Frame, StackSample


def program_first(
    sample: StackSample, frames: Callable[[str], Sequence[Frame]]
) -> tuple[StackSample, int | None]:
    """Return a sample whose first thread runs the program, and its id where it is not the main one.

    Args:
        sample: with the main thread first.
        frames: the frames of a stack, by its key.
    """
    at = program_thread([frames(one.stack) for one in sample.threads])
    if not at:
        return sample, None
    first = sample.threads[at]
    others = sample.threads[:at] + sample.threads[at + 1 :]
    return replace(sample, threads=(first, *others)), first.tid


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
