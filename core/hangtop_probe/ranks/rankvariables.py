"""Read from the environment of a rank its number, its job and its launcher.

Which variables those are, the table `launchers` says.
"""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from ..proc import procfs
from . import launchers

_NUMBERS = launchers.every("ranks") + launchers.every("pmi_ranks")
_TASKS = launchers.every("tasks")
_IDENTITY = launchers.every("ids")
_RENDEZVOUS = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank_number(environ: Mapping[str, str]) -> Optional[Tuple[int, str]]:
    """Return the rank and the variable that says so, not looking at those of tasks.

    RANK alone proves nothing, many programs use the name: it takes a variable of the
    rendezvous beside it.
    """
    for name in _NUMBERS:
        number = procfs.decimal(environ.get(name, ""))
        if number is None:
            continue
        if name == "RANK" and not any(other in environ for other in _RENDEZVOUS):
            continue
        return number, name
    return None


def task_number(environ: Mapping[str, str]) -> Optional[Tuple[int, str]]:
    """Return the number of a task, which may be a rank or have started some, and its variable."""
    numbers = ((procfs.decimal(environ.get(name, "")), name) for name in _TASKS)
    return next(((number, name) for number, name in numbers if number is not None), None)


def identity(environ: Mapping[str, str]) -> Tuple[Optional[str], ...]:
    """Return the variables that distinguish one job from another."""
    return tuple(environ.get(name) for name in _IDENTITY)
