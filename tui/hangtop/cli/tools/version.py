"""`hangtop --version`, and with `--verbose` the facts for a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARIES = (
    "textual",
    "msgspec",
    "ClusterShell",
    "psutil",
    "nvidia-ml-py",
    "platformdirs",
    "torch",
    "pystack",
)
PROGRAMS = {
    "py-spy": ("--version",),
    "strace": ("-V",),
    "gdb": ("--version",),
    "ssh": ("-V",),
    "pdsh": ("-V",),
    "srun": ("--version",),
    "tmux": ("-V",),
}
TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL", "TMUX", "STY", "SSH_TTY")
LIMIT_S = 3.0
MAX_OUTPUT = 64 << 10
"""Limit in bytes of a program's version output."""


def version_text(verbose: bool, *, as_json: bool) -> str:
    """Return the version or all facts, as text or for programs (schema `hangtop.version/1`)."""
    from hangtop_core.version import __version__

    rows = list(_full()) if verbose else []
    if not as_json:
        return "\n".join(
            [f"hangtop {__version__}", *(f"  {name:<13} {value}" for name, value in rows)]
        )
    from hangtop_core.diagnosis import to_json

    document = {"schema": "hangtop.version/1", "hangtop": __version__, "facts": dict(rows)}
    return to_json(document).decode()


def _full() -> Iterator[tuple[str, str]]:
    """Yield versions of everything hangtop depends on here, and relevant facts of the terminal."""
    yield from _itself()
    yield from _libraries()
    yield from _programs()
    yield from _terminal()


def _itself() -> Iterator[tuple[str, str]]:
    import hangtop_core
    from hangtop.cli.config import config_path

    yield "python", f"{platform.python_version()} {sys.executable}"
    yield "installed in", str(Path(hangtop_core.__file__).parents[1])
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    libc = " ".join(platform.libc_ver())
    yield "libc", libc.strip() or "not known"
    path = config_path()
    yield "config file", str(path) if path.exists() else f"{path} (there is none)"


def _libraries() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"


def _programs() -> Iterator[tuple[str, str]]:
    for name, words in PROGRAMS.items():
        path = _pyspy() if name == "py-spy" else shutil.which(name)
        yield name, f"{_first_line([path, *words])} {path}" if path else "not found"


def _pyspy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _first_line(argv: list[str]) -> str:
    """Return the version that a program prints; some programs print it on stderr."""
    from subprocess import TimeoutExpired

    from hangtop_core.attach.ways import subprocesses
    from hangtop_core.text.clean import clean

    try:
        done = subprocesses.run(argv, LIMIT_S, MAX_OUTPUT, os.environ)
    except OSError as error:
        return f"does not start ({type(error).__name__})"
    except TimeoutExpired:
        return f"does not end within {LIMIT_S:g} s"
    except subprocesses.TooMuchOutputError:
        return f"prints over {MAX_OUTPUT >> 10} KiB"
    lines = (done.out or done.err).strip().splitlines()
    if done.code:
        return f"fails with status {done.code}"
    return clean(lines[0], 80) if lines else "says nothing"


def _terminal() -> Iterator[tuple[str, str]]:
    for name in TERMINAL:
        if name in os.environ:
            yield name, os.environ[name]
    if sys.stdout.isatty():
        columns, lines = shutil.get_terminal_size()
        yield "terminal", f"{columns}x{lines}"
