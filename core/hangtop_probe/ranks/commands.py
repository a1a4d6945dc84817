"""Reading command lines: what a Python process runs, and which launcher a process is.

Launchers are those of the table `launchers`; helpers are those of torch 2.13 and CPython.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Optional, Sequence, Tuple

from . import launchers

_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*(?:t|d|-dbg|-intel64)?$")
_WITH_VALUE = frozenset(["-W", "-X", "-Q", "--check-hash-based-pycs"])
WORKER_COMM = "pt_data_worker"
"""Name of a DataLoader worker from torch 2.7 on (torch/utils/data/_utils/worker.py)."""


def is_python_name(path: str) -> bool:
    """Whether a path or process name is a Python interpreter's."""
    return bool(_PYTHON.match(os.path.basename(path)))


def python_target(cmdline: Sequence[str]) -> Optional[Tuple[str, str]]:
    """Return ("script", path), ("module", name) or ("code", text) that a Python command runs.

    None for an interactive interpreter and for what is no Python command.
    """
    if not cmdline or not is_python_name(cmdline[0]):
        return None
    arguments = iter(cmdline[1:])
    for argument in arguments:
        if argument in _WITH_VALUE:
            next(arguments, None)
        elif argument in ("-m", "-c"):
            value = next(arguments, None)
            kind = "module" if argument == "-m" else "code"
            return (kind, value) if value else None
        elif re.match(r"^-[A-Za-z]*m$", argument):
            value = next(arguments, None)
            return ("module", value) if value else None
        elif argument == "-" or not argument.startswith("-"):
            return "script", argument
    return None


@functools.lru_cache(maxsize=4096)
def launcher_kind(comm: str, cmdline: Tuple[str, ...]) -> Optional[str]:
    """Return the name of the launcher in the table that a process is, or None.

    Programs such as mpirun and srun start all sorts of things: they count where their command is a
    Python one.
    """
    kind, name = python_target(cmdline) or ("", "")
    if kind == "module":
        found = launchers.owner("modules", name)
    elif kind == "script":
        found = launchers.of_script(name)
    else:
        found = _native(cmdline)
    if found is not None and found.verb and found.verb not in " ".join(cmdline[1:4]):
        return None
    found = found or launchers.owner("comms", comm)
    return found.name if found is not None else None


def _native(cmdline: Sequence[str]) -> Optional[launchers.Launcher]:
    name = os.path.basename(cmdline[0]) if cmdline else ""
    runs_python = any(is_python_name(a) or a.endswith(".py") for a in cmdline[1:])
    program = launchers.owner("programs", name) if runs_python else None
    return program or launchers.owner("daemons", name)


def helper_role(comm: str, cmdline: Sequence[str]) -> Optional[str]:
    """Return the role of a process that serves a rank and is never one; None if unknown.

    torch 2.13 torch/utils/data/_utils/worker.py, torch/_inductor/compile_worker, CPython
    multiprocessing's own helper processes, and debugpy 1.8, whose adapter leaves its rank.
    """
    if comm == WORKER_COMM:
        return "dataloader-worker"
    target = python_target(cmdline)
    if target is None:
        return None
    if target[0] == "code":
        if "multiprocessing.resource_tracker" in target[1] or "semaphore_tracker" in target[1]:
            return "resource-tracker"
        if "multiprocessing.forkserver" in target[1]:
            return "forkserver"
    elif "torch/_inductor/compile_worker" in target[1] or target[1].startswith(
        "torch._inductor.compile_worker"
    ):
        return "compile-worker"
    elif target[1].endswith("/debugpy/adapter"):
        return "debug-adapter"
    return None


def runs_hangtop(cmdline: Sequence[str]) -> bool:
    """Whether this is hangtop itself, such as `hangtop run`, which may be started with a RANK.

    So may a probe: where a batch script of Slurm's watches its job, it has the script's variables.
    """
    kind, name = python_target(cmdline) or ("", "")
    if kind == "code":
        asks = name.startswith('"hangtop debug";')
        return asks or "hangtop_" in name or name.endswith("'hangtop','exec'))")
    prompt = kind == "script" and name.endswith("/hangtop_hook/terminal.py")
    return prompt or (kind in ("module", "script") and os.path.basename(name) == "hangtop")


def is_spawned(cmdline: Sequence[str]) -> bool:
    """Whether this is a child that multiprocessing started with the `spawn` method."""
    return "--multiprocessing-fork" in cmdline
