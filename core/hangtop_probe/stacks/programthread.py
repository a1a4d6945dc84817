"""Find the thread in which a rank runs its program: not always the main thread.

Ray Train calls the training function in a thread of a worker whose main thread serves Ray
(ray/_private/worker.py `main_loop`), as do other frameworks. There the main thread has frames of a
framework only, none of the user's code or of torch, and another thread has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence

if TYPE_CHECKING:
    from ..ranks.rows import Row, Sample

_FILELESS = ("<dynamic-code>", "<stdin>", "<ipython-input", "<doctest ")
"""File names of functions from cloudpickle 3.1 or typed code; libraries make all others."""
_INSTALLED = ("/site-packages/", "/dist-packages/")


def program_thread(result: Sample) -> Optional[int]:
    """Return the id of the thread that runs the program, None where the main thread does."""
    stacks = [result.stacks[thread["stack"]] for thread in result.threads]
    mains = [at for at, thread in enumerate(result.threads) if thread["name"] == "MainThread"]
    if len(stacks) < 2 or not mains or not _serves(stacks[mains[0]]):
        return None
    programs = [at for at, stack in enumerate(stacks) if any(map(_is_users, stack))]
    programs.sort(key=lambda at: not any(map(_is_torchs, stacks[at])))
    tid = result.threads[programs[0]]["tid"] if programs else None
    return tid if isinstance(tid, int) else None


def _serves(stack: Sequence[Row]) -> bool:
    """Whether a thread is in a framework, and neither in the user's code nor in torch."""
    installed = any(_is_installed(row) for row in stack)
    return installed and not any(_is_users(row) or _is_torchs(row) for row in stack)


def _is_installed(row: Row) -> bool:
    return any(part in row[1] for part in _INSTALLED)


def _is_torchs(row: Row) -> bool:
    return "/torch/" in row[1]


def _is_users(row: Row) -> bool:
    """Whether a frame is the user's code: not Python's library, not installed, not native."""
    path = str(row[1])
    own = not _is_installed(row) and "/lib/python3" not in path and not _is_torchs(row)
    return own and (path.endswith(".py") or path.startswith(_FILELESS))
