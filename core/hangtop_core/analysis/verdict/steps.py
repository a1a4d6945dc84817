"""Next steps: advice in words, and commands that know on which node they are to be run."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.model import Node

_COMPOUND = re.compile(r"[;|&<>]")


class Command(Struct, frozen=True):
    """A command of a node's shell, or one of hangtop's own that is about a process there."""

    node: str
    text: str
    words: str = ""
    """What is said before it."""


Step = str | Command
"""Words for a person are a plain text."""


def on(subject: Subject, text: str, words: str = "") -> Command:
    """A command for the node of a rank."""
    return Command(subject.rank.node, text, words)


def strace_step(subject: Subject, pid: int) -> Command:
    """Trace a process of a rank for some seconds.

    Without an end of its own, strace would stay on a silent process after Ctrl-C: ssh without a
    terminal passes no signal on.
    """
    return on(subject, f"timeout 10 strace -f -p {pid}")


def trace_steps(subject: Subject) -> tuple[Command, ...]:
    """Commands that show more of where a process is."""
    pid = subject.pid
    return (on(subject, f"hangtop dump --pid {pid} --native"), strace_step(subject, pid))


def spelt(step: Step, nodes: Mapping[str, Node]) -> str:
    """Write a step so that it can be run from where hangtop runs.

    On this machine a command is what it is. For another node hangtop's own commands get the
    options that lead there, and all others go through the shell by which the node is reached.
    """
    if isinstance(step, str):
        return step
    text = _spelt(step, nodes.get(step.node))
    return clean(f"{step.words}: {text}" if step.words else text, 600)


def _spelt(command: Command, node: Node | None) -> str:
    text = command.text
    if node is None or node.shell is None:
        return text
    program, _, rest = text.partition(" ")
    if program == "hangtop":
        what, _, more = rest.partition(" ")
        return f"hangtop {what} {node.options} {more}".rstrip()
    fact = node.capabilities.get("py-spy")
    if (
        program == "py-spy"
        and fact is not None
        and fact.path
        and not fact.path.startswith("/proc/")
    ):
        # It may be there only because hangtop brought it.
        text = f"{shlex.quote(fact.path)} {rest}"
    if "--sudo" in node.options.split():
        text = f"sudo sh -c {shlex.quote(text)}" if _COMPOUND.search(text) else f"sudo {text}"
    return f"{node.shell} {shlex.quote(text)}"
