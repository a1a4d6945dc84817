"""Copying from a terminal program to the user's clipboard.

OSC 52 does not pass a tmux with default settings, while `tmux load-buffer -w -` does; outside tmux
OSC 52 reaches the user's own terminal even over ssh, if that allows it. GNU screen passes on
escapes that are wrapped for it, in pieces. Arrival cannot be verified, so the text is always
written to a file as well, and the file is named.
"""

from __future__ import annotations

import base64
import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from hangtop_probe.wire import cachedir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OSC52_LIMIT = 56_000
"""Limit in bytes before base64; xterm and tmux drop longer strings (74,994 bytes after base64)."""

SCREEN_PIECE = 200
"""Bytes of a string that GNU screen passes on; older versions drop 256 and more (MAXSTR)."""

TMUX_TIMEOUT_S = 2.0


def copy(
    text: str,
    write: Callable[[str], None],
    *,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> str:
    """Copy `text` and return a description of where it went; blocks for `TMUX_TIMEOUT_S` at most.

    `write` writes to the terminal.
    """
    places: list[str] = []
    text = text.encode(errors="backslashreplace").decode()  # names may not be valid UTF-8
    if environ.get("TMUX"):
        places.append(_tmux(text))
    elif len(text.encode()) <= OSC52_LIMIT:
        escape = _osc52(text)
        write(_through_screen(escape) if environ.get("STY") else escape)
        places.append("the terminal's clipboard")
    else:
        places.append("too long for the clipboard")
    try:
        places.append(str(_write(text, folder or user_cache_path("hangtop"))))
    except OSError as error:
        places.append(f"no file ({error.strerror})")
    return ", ".join(places)


def _osc52(text: str) -> str:
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"


def _through_screen(escape: str) -> str:
    """Wrap an escape in device control strings, whose content GNU screen passes on unchanged."""
    pieces = (escape[start : start + SCREEN_PIECE] for start in range(0, len(escape), SCREEN_PIECE))
    return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)


def _tmux(text: str) -> str:
    try:
        subprocess.run(
            ["tmux", "load-buffer", "-w", "-"],
            input=text.encode(),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TMUX_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return "tmux refused"
    return "the tmux buffer and clipboard"


def _write(text: str, folder: Path) -> Path:
    """Write a text to a file that only the user may read, as stacks and paths are private.

    No other user may choose the target: the directory is one that is fit to be a cache directory.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    real = os.path.realpath(folder.parent)
    try:
        cachedir.check_way(real)
        path = Path(cachedir.own_directory(os.path.join(real, folder.name))) / "copied.txt"
    except cachedir.Unusable as error:
        raise OSError(errno.EPERM, str(error)) from error
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text + "\n")
    return path
