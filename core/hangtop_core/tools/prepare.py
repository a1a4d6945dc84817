"""A directory and an environment for a job that can be examined when it hangs.

`make` creates the directory of a run, `environment` returns the variables that activate
`hangtop_hook` from there, `torch_version` returns the torch that a command will use, and `tidy`
removes what is useless once the job is over. torch is not imported, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_state_path

import hangtop_hook
from hangtop_core.attach.ways import subprocesses
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import plural
from hangtop_hook import logs, names, numericsfile, server
from hangtop_probe.proc import procfs
from hangtop_probe.ranks import launchers
from hangtop_probe.ranks.commands import is_python_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOOK = "hook"
_SOURCE = Path(hangtop_hook.__file__).parent
_VERSION = "from importlib.metadata import version; print(version('torch'))"
_MPI = {name for kind in launchers.TABLE if "mpi" in kind.name for name in kind.programs}
_LOOK_S = 20.0
_MAX_OUTPUT = 1 << 20
"""Maximum number of bytes of a program's version output, which has a few lines."""
_MAX_BEGIN = 64 << 10
"""Bytes of a command line that are checked: others may have MiB of it."""
_FULL = 64 << 10
"""Bytes; a file system rarely gives its last ones."""


@dataclass(frozen=True)
class Parts:
    """The parts of a run's preparation."""

    logs: bool = True
    """A log per rank, and `node:rank` before its lines."""
    stacks: bool = True
    """Stacks of all threads on a signal."""
    sync_cuda: bool = False
    """CUDA_LAUNCH_BLOCKING."""
    hide_gpus: bool = False
    """CUDA_VISIBLE_DEVICES, empty."""
    numerics: numericsfile.Settings | None = None
    """Settings of the search for the first inf or nan, if there is one."""


def make(directory: Path | None, parts: Parts) -> Path:
    """Make the directory of a run, with the hook in it; readable by its owner only.

    Raises:
        UsageError: when it cannot be made, or belongs to another user.
    """
    name = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(4)
    # Resolved: a link in the path may change before ranks use it.
    path = (directory or user_state_path("hangtop") / "runs" / name).resolve()
    if os.pathsep in str(path):
        raise UsageError(f"--dir: a colon in {path} would cut PYTHONPATH in two")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := _open_to_others(path):
            raise UsageError(
                f"--dir: {path} can be changed by others: {why}",
                "What lies there runs in your job: it has to be yours, in a place of yours.",
            )
        copy_hook(path / HOOK)
        kinds = {"flight": True, "logs": parts.logs, "stacks": parts.stacks}
        kinds["numerics"] = parts.numerics is not None
        for part, wanted in kinds.items():
            if wanted:
                (path / part).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot use {path} for the run: {error.strerror}",
            "Try: hangtop run --dir DIR -- COMMAND, with a directory that can be written to",
        ) from error
    return path


def _open_to_others(path: Path) -> str | None:
    """Return why others could put code there; members of the owner's groups are trusted."""
    status = path.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        return f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"
    for above in path.parents:
        status = above.stat()
        sticky = status.st_mode & stat.S_ISVTX and status.st_uid in (os.getuid(), 0)
        if status.st_mode & 0o002 and not sticky:
            return f"everybody can rename it within {above}"
    return None


def copy_hook(target: Path) -> None:
    """Copy the hook, and nothing else of hangtop, to where PYTHONPATH can name it."""
    package = target / _SOURCE.name
    package.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(launchers.__file__, package / "launchers.py")
    for source in sorted(_SOURCE.glob("*.py")):
        place = target / "sitecustomize.py" if source.name == "activate.py" else package
        shutil.copyfile(source, place / source.name if place.is_dir() else place)


def environment(
    run: Path, version: names.Version | None, parts: Parts, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to add to ``environ``, valid on any node of the job.

    The hook chooses where dumps go: it knows whether its node has the run's directory.
    """
    paths = [str(run / HOOK), environ.get("PYTHONPATH", "")]
    variables = {
        hangtop_hook.RUN_DIR: str(run),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **names.variables(version, environ),
    }
    if parts.sync_cuda:
        variables["CUDA_LAUNCH_BLOCKING"] = "1"
    if parts.hide_gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    if parts.numerics is not None:
        variables[numericsfile.VARIABLE] = numericsfile.to_text(parts.numerics)
    return variables


def with_exports(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Add Open MPI's `-x` options, without which mpirun keeps variables from other nodes."""
    name = Path(command[0]).name
    if name not in _MPI or "Open MPI" not in _output([command[0], "--version"]):
        return list(command)
    exports = [word for variable in variables for word in ("-x", variable)]
    return [command[0], *exports, *command[1:]]


def interpreter(command: Sequence[str]) -> str | None:
    """Return the Python that a command line starts, or None if unknown.

    It is the command itself, the one in the command's first line (torchrun, accelerate), or the
    first word that is a Python (mpirun, srun).
    """
    program = shutil.which(command[0])
    if program is None:
        return None
    if not is_python_name(program) and (named := _shebang(program)):
        return named
    for word in command:
        if is_python_name(word):
            return shutil.which(word)
    return None


def _shebang(path: str) -> str | None:
    """Return the Python in a script's first line."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        line = file.readline(512).decode(errors="replace")
        words = line[2:].split() if line.startswith("#!") else []
        for word in words:
            if is_python_name(word):
                return shutil.which(word)
    return None


def torch_version(python: str) -> names.Version | None:
    """Return the version of an interpreter's torch without importing it; None without torch."""
    return names.version_of(_output([python, "-c", _VERSION]))


def _output(command: list[str]) -> str:
    """Return a command's output; empty if it fails, takes too long or does not stop printing."""
    try:
        done = subprocesses.run(command, _LOOK_S, _MAX_OUTPUT, os.environ)
    except (OSError, subprocess.TimeoutExpired, subprocesses.TooMuchOutputError):
        return ""
    return done.out if done.code == 0 else ""


def tidy(run: Path) -> list[str]:
    """Remove what only served the running job; return kinds of remaining files with counts."""
    for path in [*run.glob("flight/*.pipe"), *run.glob("stacks/*"), *run.glob("logs/*")]:
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(path.lstat().st_mode) or path.lstat().st_size == 0:
                path.unlink()
    with contextlib.suppress(OSError):
        for path in Path(server.socket_directory()).glob(f"{run.name[-8:]}-*.sock"):
            server.remove_dead(str(path))
    with contextlib.suppress(OSError):
        Path(server.socket_directory()).rmdir()
    kinds = {"log": "logs/*", "dump": "flight/*", "stack file": "stacks/*"}
    kinds["numerics file"] = "numerics/*"
    counts = {kind: len(list(run.glob(pattern))) for kind, pattern in kinds.items()}
    return [plural(count, kind) for kind, count in counts.items() if count]


def is_full(run: Path) -> bool:
    """Whether the run's file system is full."""
    return logs.free(str(run)) < _FULL


def wait_for_logs(run: Path, limit_s: float = 3.0) -> None:
    """Wait until the last lines of this machine's ranks are copied to their logs."""
    end = time.monotonic() + limit_s
    while _copying(run) and time.monotonic() < end:
        time.sleep(0.02)


def _copying(run: Path) -> bool:
    """Whether a process that copies a log of this run is running."""
    script = os.fsencode(run / HOOK / _SOURCE.name / "tee.py")
    for name in os.listdir("/proc"):
        if name.isdecimal():
            line = procfs.read(f"/proc/{name}/cmdline", _MAX_BEGIN) or b""
            if script in line.split(b"\0"):
                return True
    return False
