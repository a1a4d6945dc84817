"""$PAGER and $EDITOR, run in the foreground while the app is suspended."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUS_LINE = frozenset({"vi", "vim", "nvim", "nano", "emacs", "emacsclient", "joe", "micro", "kak"})
"""Editors that take `+LINE FILE`."""


def page(text: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Show a text in the pager; why not, when it could not be started."""
    command = shlex.split(environ.get("PAGER") or "less -S")
    with tempfile.NamedTemporaryFile("w", prefix="hangtop-", suffix=".txt") as file:
        file.write(text + "\n")
        file.flush()
        return _run([*command, file.name])


def edit(path: str, line: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Open a file at a line in the editor; why not, when it could not be started."""
    if not os.path.isfile(path):
        return f"{path} is not on this machine"
    command = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")
    at = [f"+{line}"] if os.path.basename(command[0]) in PLUS_LINE else []
    return _run([*command, *at, path])


def _run(command: list[str]) -> str | None:
    try:
        subprocess.run(command, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return None
