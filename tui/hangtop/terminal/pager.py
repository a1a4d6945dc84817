"""$PAGER, $EDITOR and shells, run in the foreground while the app is suspended."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from hangtop_core.text.commands import spelt_or_why
from hangtop_probe.wire import tools

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PLUS_LINE = frozenset({"vi", "vim", "nvim", "gvim", "nano", "emacs", "emacsclient", "joe", "jed"})
PLUS_LINE |= {"mg", "zile", "micro", "kak", "gedit"}
PLUS_LINE |= {"editor", "sensible-editor"}
"""Editors that take `+LINE FILE`."""
COLON_LINE = frozenset({"hx", "helix", "subl", "zed", "mcedit"})
"""Editors that take `FILE:LINE`."""
GOTO = frozenset({"code", "code-insiders", "codium", "cursor"})
"""Editors that take `FILE:LINE` after `--goto`."""

NO_SHELL = frozenset({126, 127, 255})
"""Exit statuses for "not started", "not found" and ssh's own errors; any other status is that of
the last command in the shell.
"""


def page(text: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Show a text in the pager; return the reason if it could not be started."""
    try:
        command = _program(environ, ("PAGER",), "less -S")
        # The pager decodes the file by the locale; characters the locale does not have are shown as
        # `?`. The file has no name, so that no process killed at any time leaves it behind.
        with tempfile.TemporaryFile("w", errors="replace") as file:
            file.write(text + "\n")
            file.flush()
            return _run([*command, f"/dev/fd/{file.fileno()}"], file.fileno())
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"no file for the pager in {tempfile.gettempdir()}: {error.strerror}"


def edit(path: str, line: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Open a file at a line in the editor; return the reason if it could not be started."""
    path = os.path.abspath(path)  # a relative one may look like an option: `-c...`, `+!...`
    if not os.path.isfile(path):
        return f"{path} is not on this machine"
    try:
        command = _program(environ, ("VISUAL", "EDITOR"), "vi")
    except ValueError as error:
        return str(error)
    return _run([*command, *_at(command, path, line)])


def _at(command: Sequence[str], path: str, line: int) -> list[str]:
    """Return the words that open a file at a line; for an unknown editor only the file."""
    editor = os.path.basename(command[0]).partition(".")[0]  # Debian's: vim.tiny, vim.basic
    if editor in PLUS_LINE:
        return [f"+{line}", path]
    if editor in GOTO:
        goto = [] if {"-g", "--goto"}.intersection(command) else ["--goto"]
        return [*goto, f"{path}:{line}"]
    return [f"{path}:{line}"] if editor in COLON_LINE else [path]


def _program(environ: Mapping[str, str], names: Sequence[str], usual: str) -> list[str]:
    """Return the words of the first variable in `names` that is set, else of the usual program.

    Raises:
        ValueError: a shell could not parse the value.
    """
    name = next((variable for variable in names if environ.get(variable, "").strip()), "")
    try:
        return shlex.split(environ[name] if name else usual)
    except ValueError as error:
        raise ValueError(f"${name} is {environ[name]!r}: {error}") from None


def prompt(
    command: Sequence[str], shown: str, where: str, outcome: Callable[[int], Sequence[str]]
) -> str | None:
    """Announce a prompt and run it; return the reason in one line if it could not be opened.

    ``shown`` is the command as people read it, and ``outcome`` explains its exit status.
    """
    notice = f"hangtop: {where}, leaving it comes back: {shown}"
    print(f"\n{notice}", file=sys.__stderr__, flush=True)
    try:
        lines = outcome(status(dying_with_us(command)))
    except OSError as error:
        lines = (f"{command[0]}: {error.strerror}",)
    if lines:
        _wait_for_enter("\n  - ".join(lines))
    return lines[0] if lines else None


def report(command: Sequence[str], where: str) -> str | None:
    """Run a program and wait for Enter before the screens return; return the reason if it fails."""
    notice = f"hangtop: {where}, Ctrl-C ends it: {spelt_or_why(command)}"
    print(f"\n{notice}", file=sys.__stderr__, flush=True)
    try:
        wrong = None
        status(dying_with_us(command))
    except OSError as error:
        wrong = f"{command[0]}: {error.strerror}"
    _wait_for_enter(wrong or "what it said stays in this terminal")
    return wrong


def shell(command: Sequence[str], where: str) -> str | None:
    """Announce a shell and run it; return the reason if it could not be started."""
    notice = f"hangtop: {where}, leaving it comes back: {spelt_or_why(command)}"
    print(f"\n{notice}", file=sys.__stderr__, flush=True)
    try:
        code = status(command)
        wrong = f"{command[0]} ended with status {code}" if code in NO_SHELL else None
    except OSError as error:
        wrong = f"{command[0]}: {error.strerror}"
    if wrong is not None:
        _wait_for_enter(wrong)
    return wrong


def _wait_for_enter(message: str) -> None:
    """Show a message until Enter is pressed: the next screen update would erase it."""
    print(f"hangtop: {message}\nEnter goes on ", end="", flush=True, file=sys.__stderr__)
    with contextlib.suppress(EOFError, OSError):
        sys.stdin.readline()


def _run(command: Sequence[str], *descriptors: int) -> str | None:
    """Run a program; return the reason if it could not be started."""
    try:
        status(command, *descriptors)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return None


def dying_with_us(command: Sequence[str]) -> list[str]:
    """Return the command so that it ends with this process, should that be killed."""
    program = shutil.which(command[0]) or command[0]
    return [*tools.dying_with_us(shutil.which("setpriv"), signal.SIGTERM), program, *command[1:]]


def status(command: Sequence[str], *descriptors: int) -> int:
    """Run a program to its end, with these descriptors open, and return its exit status."""
    # Ctrl-C is for the program. A handler rather than SIG_IGN, which the program would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run(command, pass_fds=descriptors, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
