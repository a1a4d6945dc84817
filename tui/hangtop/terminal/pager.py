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
"""Editors that do so after `--goto`."""

NO_SHELL = frozenset({126, 127, 255})
"""Not started, not found, and ssh's own errors; any other is what the last command ended with."""


def page(text: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Show a text in the pager; why not, when it could not be started."""
    try:
        command = _program(environ, ("PAGER",), "less -S")
        # The pager takes the file for what the locale says; what that lacks is shown as `?`.
        # It has no name, so that nothing is left of it, whoever is killed.
        with tempfile.TemporaryFile("w", errors="replace") as file:
            file.write(text + "\n")
            file.flush()
            return _run([*command, f"/dev/fd/{file.fileno()}"], file.fileno())
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"no file for the pager in {tempfile.gettempdir()}: {error.strerror}"


def edit(path: str, line: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Open a file at a line in the editor; why not, when it could not be started."""
    path = os.path.abspath(path)  # a relative one may look like an option: `-c...`, `+!...`
    if not os.path.isfile(path):
        return f"{path} is not on this machine"
    try:
        command = _program(environ, ("VISUAL", "EDITOR"), "vi")
    except ValueError as error:
        return str(error)
    return _run([*command, *_at(command, path, line)])


def _at(command: Sequence[str], path: str, line: int) -> list[str]:
    """Words that open a file at a line; of an editor that is not known only the file."""
    editor = os.path.basename(command[0]).partition(".")[0]  # Debian's: vim.tiny, vim.basic
    if editor in PLUS_LINE:
        return [f"+{line}", path]
    if editor in GOTO:
        goto = [] if {"-g", "--goto"}.intersection(command) else ["--goto"]
        return [*goto, f"{path}:{line}"]
    return [f"{path}:{line}"] if editor in COLON_LINE else [path]


def _program(environ: Mapping[str, str], names: Sequence[str], usual: str) -> list[str]:
    """The words of the first of these variables that is set, else of the usual program.

    Raises:
        ValueError: when a shell could not read it either.
    """
    name = next((one for one in names if environ.get(one, "").strip()), "")
    try:
        return shlex.split(environ[name] if name else usual)
    except ValueError as error:
        raise ValueError(f"${name} is {environ[name]!r}: {error}") from None


def prompt(
    command: Sequence[str], shown: str, where: str, outcome: Callable[[int], Sequence[str]]
) -> str | None:
    """Run a prompt after saying which; in one line why there was none, if so.

    ``shown`` is the command for people, and ``outcome`` says for them what its exit status means.
    """
    told = f"hangtop: {where}, leaving it comes back: {shown}"
    print(f"\n{told}", file=sys.__stderr__, flush=True)
    try:
        lines = outcome(status(dying_with_us(command)))
    except OSError as error:
        lines = (f"{command[0]}: {error.strerror}",)
    if lines:
        _wait_for_enter("\n  - ".join(lines))
    return lines[0] if lines else None


def report(command: Sequence[str], where: str) -> str | None:
    """Run a program whose output is to be read before the screens come back; why not, if so."""
    told = f"hangtop: {where}, Ctrl-C ends it: {spelt_or_why(command)}"
    print(f"\n{told}", file=sys.__stderr__, flush=True)
    try:
        wrong = None
        status(dying_with_us(command))
    except OSError as error:
        wrong = f"{command[0]}: {error.strerror}"
    _wait_for_enter(wrong or "what it said stays in this terminal")
    return wrong


def shell(command: Sequence[str], where: str) -> str | None:
    """Run a shell after saying which; why it could not be had, if so."""
    told = f"hangtop: {where}, leaving it comes back: {spelt_or_why(command)}"
    print(f"\n{told}", file=sys.__stderr__, flush=True)
    try:
        code = status(command)
        wrong = f"{command[0]} ended with status {code}" if code in NO_SHELL else None
    except OSError as error:
        wrong = f"{command[0]}: {error.strerror}"
    if wrong is not None:
        _wait_for_enter(wrong)
    return wrong


def _wait_for_enter(said: str) -> None:
    """Show why something did not work: it would be gone with the next picture."""
    print(f"hangtop: {said}\nEnter goes on ", end="", flush=True, file=sys.__stderr__)
    with contextlib.suppress(EOFError, OSError):
        sys.stdin.readline()


def _run(command: Sequence[str], *descriptors: int) -> str | None:
    """Run a program; why it could not be started, if so."""
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
    # Ctrl-C is for the program. With a handler, not ignored: that would be passed on to it.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run(command, pass_fds=descriptors, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
