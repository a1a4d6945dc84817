"""Errors of the hook: each costs one line on standard error, and nothing else."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would slow every Python's start by some milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable


def attempt(part: str, action: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``action``; an error in it costs one line, and nothing else."""
    try:
        return action(*arguments)
    except Exception as error:
        complain(part, error)
        return None


def complain(part: str, error: BaseException) -> None:
    """Report in one line that a part of the hook does not work in this process."""
    text = " ".join(str(error).split())[:300]
    line = "hangtop: %s: %s: %s\n" % (part, type(error).__name__, text)
    try:
        sys.stderr.write(line)
    except Exception:  # noqa: S110  # nobody listens
        pass
