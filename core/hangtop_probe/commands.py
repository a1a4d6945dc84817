"""Reading command lines: what a Python process runs, and which launcher a process is.

Sources: torch 2.13 (torch/distributed/run.py, elastic/agent, multiprocessing helpers), accelerate,
deepspeed, Open MPI, MPICH's hydra and Slurm process names.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Optional, Sequence, Tuple

_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*(?:t|d|-dbg|-intel64)?$")
_WITH_VALUE = frozenset(["-W", "-X", "-Q", "--check-hash-based-pycs"])
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
_SCRIPTS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "ds": "deepspeed",
}
_NATIVE = {
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "orterun": "mpirun",
    "prterun": "mpirun",
    "mpiexec.hydra": "mpirun",
    "hydra_pmi_proxy": "mpirun",
    "orted": "mpirun",
    "prted": "mpirun",
    "srun": "srun",
}
ELASTIC_COMM = "pt_elastic"
"""Name torchrun gives its main thread (torch 2.13 elastic/agent/server/api.py)."""
AGENT = "elastic agent"
"""What a program is called that calls torchrun's agent itself (torch.distributed.launcher)."""
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
    """Return torchrun, accelerate, deepspeed, mpirun or srun, or None for anything else.

    mpirun and srun start all sorts of things: they count where their command is a Python one.
    """
    target = python_target(cmdline)
    if target and target[0] == "module":
        kind = _MODULES.get(target[1])
    elif target and target[0] == "script":
        kind = _script_kind(target[1])
    else:
        kind = _native_kind(cmdline)
    if kind == "accelerate" and "launch" not in " ".join(cmdline[1:4]):
        return None
    return kind or ("torchrun" if comm == ELASTIC_COMM else None)


def _script_kind(path: str) -> Optional[str]:
    if path.endswith(("torch/distributed/run.py", "torch/distributed/launch.py")):
        return "torchrun"
    if path.endswith(("deepspeed/launcher/launch.py", "deepspeed/launcher/runner.py")):
        return "deepspeed"
    if path.endswith("accelerate/commands/launch.py"):
        return "accelerate"
    return _SCRIPTS.get(os.path.basename(path))


def _native_kind(cmdline: Sequence[str]) -> Optional[str]:
    name = os.path.basename(cmdline[0]) if cmdline else ""
    kind = _NATIVE.get(name)
    if kind is None or name in ("hydra_pmi_proxy", "orted", "prted"):
        return kind
    runs_python = any(is_python_name(a) or a.endswith(".py") for a in cmdline[1:])
    return kind if runs_python else None


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


_HELPERS = {
    "resource-tracker": "resource tracker",
    "forkserver": "forkserver",
    "compile-worker": "inductor compile worker",
    "debug-server": "debug server",
    "debug-adapter": "debug adapter",
}


def helper_label(role: str, comm: str, worker: Optional[int]) -> str:
    """Return what a process that a rank has started is, for people."""
    if role == "dataloader-worker":
        return "DataLoader worker" if worker is None else "DataLoader worker %d" % worker
    return _HELPERS.get(role, "subprocess %s" % comm)
