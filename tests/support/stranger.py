"""Another user of this machine, who really tries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

UID = 65534
"""nobody, who may do nothing that others may not."""


def python() -> str | None:
    """A Python that everybody may start; the one that runs this may lie in a home."""
    for path in dict.fromkeys((sys.executable, "/usr/bin/python3", shutil.which("python3") or "")):
        if path and _run([path, "-I", "-S", "-c", ""]).returncode == 0:
            return path
    return None


def why_not() -> str | None:
    """Why there can be no stranger here, or None."""
    if os.geteuid() != 0:
        return "being another user needs root"
    return None if python() else "no Python here that another user may start"


def does(code: str, *words: str) -> str:
    """Run Python code as the stranger; what it prints, errors last."""
    done = _run([python() or "", "-I", "-S", "-c", code, *words])
    return done.stdout + done.stderr


def begin(code: str, *words: str) -> subprocess.Popen[str]:
    """Start Python code as the stranger; its output is a pipe."""
    return subprocess.Popen(
        [python() or "", "-I", "-S", "-u", "-c", code, *words],
        stdout=subprocess.PIPE, text=True, cwd="/", user=UID, group=UID, extra_groups=[],
    )  # fmt: skip


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=PATIENCE, check=False,
            cwd="/", user=UID, group=UID, extra_groups=[],
        )  # fmt: skip
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


@contextmanager
def open_place() -> Iterator[Path]:
    """A directory of ours that everybody may enter; pytest's are closed."""
    with tempfile.TemporaryDirectory(prefix="hangtop-test-", dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def owned(path: Path, mode: int) -> Path:
    """Make a directory of the stranger's."""
    path.mkdir()
    os.chown(path, UID, UID)
    path.chmod(mode)
    return path
