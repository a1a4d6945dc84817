"""The part of `hangtop run` inside the processes of a job, for diagnosing it when it hangs.

Python imports `activate.py` at start, as `sitecustomize`. From then on

- `processes` distinguishes ranks from launchers and helpers, and `rank` prepares a rank,
- `importing` waits for the program to import torch.distributed; torch is never imported from here,
- `names` has the variables that enable torch's flight recorder, by version,
- `server` starts torch's own worker server on a unix socket once the program joins a process group,
- `recorder` writes a rank's flight recorder to a file when the rank ends,
- `numerics` finds the first inf or nan of a program, where the run requests it (`measures`,
  `modulenames`, `numericsfile`),
- `logs` lets a rank write to a file of its own, which `tee` copies to where its output went,
- `permit` lets the user's own tools look into the process, and dumps stacks on a signal,
- `prompt` opens a pdb prompt on another signal, for `terminal`, which the user runs beside it;
  `carried` brings both to nodes without this package, for ranks of Python 3.14 and later.

Standard library only, Python 3.8 or newer. Nothing here may change what a program does: an error
costs one line on standard error and the part that failed (`failures`).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would slow every Python's start by some milliseconds
if TYPE_CHECKING:
    from typing import Any, Dict

RUN_DIR = "HANGTOP_RUN_DIR"
"""Names the directory of the run, for the processes of the job and for tools that observe them."""

_done: Dict[int, str] = {}
"""By process id: start() must act once in every process, and anew after a fork."""


def start(directory: str) -> None:
    """Prepare this process; ``directory`` is that of the run. A second call does nothing."""
    if os.getpid() in _done:
        return
    _done[os.getpid()] = directory
    from . import importing, permit, processes
    from .failures import attempt
    from .rank import become_rank

    os.environ.setdefault(RUN_DIR, directory)
    attempt("permit", permit.let_own_tools_look)
    attempt("importing", importing.wait_for_torch, directory)
    if "HANGTOP_NUMERICS" in os.environ:
        from . import numerics

        attempt("numerics", numerics.start, directory)
    number = processes.rank_at_start()
    if number is not None:
        become_rank(directory, number)


def detect_overflow(tensor: Any, name: str) -> None:
    """Look at a tensor of a program's own between two modules, as ``"after layer_norm"``.

    For programs: `import hangtop_hook; hangtop_hook.detect_overflow(x, "after layer_norm")`. It is
    looked at like the output of a module under `hangtop run --detect-overflow`; anywhere else, and
    in what torch.compile compiles, this does nothing.
    """
    if "HANGTOP_NUMERICS" not in os.environ:
        return
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    if compiler is None or compiler.is_compiling():
        return
    from . import numerics

    numerics.detect_overflow(tensor, name)
