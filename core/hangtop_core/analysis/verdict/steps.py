"""Next steps: advice in words, and commands that know on which node they are to be run."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core import room
from hangtop_core.places import host_of, port_of
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Node, Process, Rank

MAX_WORD = 300
MAX_COMMAND = 2000
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}")
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


def word(text: str) -> str | None:
    """Write text of a node as one word of a command, to be pasted into a shell.

    None where it cannot be: it is empty or long, looks like an option, or has something in it
    that no terminal shows, and that is taken out of all that is printed.
    """
    if not text or text.startswith("-") or clean(text, MAX_WORD) != text:
        return None
    return shlex.quote(text)


def as_host(name: str) -> str | None:
    """Return the name or address of a host for use in a command, None where it can be neither."""
    return name if _HOST.fullmatch(name) else None


def answers(address: str) -> str:
    """Try to connect to `HOST:PORT`; bash does it by itself, where nc is not installed.

    Empty where that is no host and port.
    """
    host, port = as_host(host_of(address)), port_of(address)
    if host is None or not (port.isascii() and port.isdecimal()) or port == "0":
        return ""
    return f"timeout 5 bash -c '</dev/tcp/{host}/{port}' && echo connected"


def holders_step(subject: Subject, path: str) -> Command:
    """See who has a file of a rank's node open, given as a word of a command."""
    return on(subject, f"fuser -v {path} 2>&1 | grep -v '^Cannot'", "see who has it open")


def who_is(pid: int) -> str:
    """See whose a process is, since when it runs, and by which command."""
    return f"ps -o pid,user,etime,args -p {pid}"


def sockets_step(subject: Subject, pid: int, words: str = "") -> Command:
    """See the TCP connections of a process, in the network that its rank is in.

    What -i tells of one is on the line after it.
    """
    process = subject.rank.process
    inside = f"nsenter -t {process.pid} -n " if process.net_ns else ""
    return on(subject, f"{inside}ss -tnpi | grep -A1 pid={pid},", words)


def tails(rank: Rank) -> list[str]:
    """The ends of the files a rank prints to that have `log` in their path.

    stderr first: that is where a traceback is.
    """
    told = reversed(rank.process.outputs)
    paths = [path for path in told if path.startswith("/") and "log" in path]
    return [f"tail -n 50 {one}" for one in filter(None, map(word, dict.fromkeys(paths)))]


def first_errors(rank: Rank, others: Iterable[Rank]) -> list[Command]:
    """The first traceback in a file that others print to as well: its end may be all theirs."""
    shared = {path for one in others if one is not rank for path in one.process.outputs}
    ends = [one.removeprefix("tail -n 50 ") for one in tails(rank)]
    words = "see the first error in the log that ranks share: its end may be of those that waited"
    return [
        Command(rank.node, f"grep -n -m 1 -A 30 Traceback {one}", words)
        for one in ends
        if one in {word(path) for path in shared}
    ]


def thaw(process: Process, node: str) -> tuple[Command, ...]:
    """See who is in the frozen group of a process, and thaw it; version 1 has its own freezer."""
    folder = process.frozen_by or ""
    name, text = ("cgroup.freeze", "0") if "freezer" not in folder else ("freezer.state", "THAWED")
    file, members = word(f"{folder}/{name}"), word(f"{folder}/cgroup.procs")
    if not folder or not file or not members:
        return ()
    return (Command(node, f"cat {members}"), Command(node, f"echo {text} > {file}"))


def room_steps(case: Case, subject: Subject, mounts: Collection[str]) -> tuple[Command, ...]:
    """See how full file systems of a rank's node are, or quotas of its user on them."""
    used_up = room.of(case.nodes.get(subject.rank.node), subject.rank.process)
    found = [on(subject, room.command(one)) for one in used_up if one.mount in mounts]
    others = {one.mount for one in used_up}
    shown = " ".join(filter(None, (word(one) for one in mounts if one not in others)))
    return (*found[:2], *([on(subject, f"df -h {shown}; df -i {shown}")] if shown else ()))


def strace_step(subject: Subject, pid: int) -> Command:
    """Trace a process of a rank for some seconds, or see who does so already.

    Without an end of its own, strace would stay on a silent process after Ctrl-C: ssh without a
    terminal passes no signal on.
    """
    tracer = _tracer(subject, pid)
    if tracer:
        words = "no second one can trace it: see what writes its system calls already, and where to"
        return on(subject, who_is(tracer), words)
    return on(subject, f"timeout 10 strace -f -p {pid}")


def dump_step(
    subject: Subject, options: str = "", *, pid: int | None = None, words: str = ""
) -> Command:
    """See the stack of a rank, or of a child of it, with options of `hangtop dump`."""
    return on(subject, f"hangtop dump --pid {pid or subject.pid} {options}".rstrip(), words)


def profile_step(subject: Subject, options: str = "-d 10") -> Command:
    """Sample where a rank spends its time, for 10 s where options of py-spy do not say how long."""
    return on(subject, f"py-spy record {options} -o profile.svg --pid {subject.pid}")


def trace_steps(subject: Subject) -> tuple[Command, ...]:
    """Commands that show more of where a process is."""
    pid = subject.pid
    strace = strace_step(subject, pid)
    if _tracer(subject, pid):
        return (strace,)  # C frames need to trace it, too
    return (dump_step(subject, "--native"), strace)


def _tracer(subject: Subject, pid: int) -> int:
    processes = (subject.rank.process, *subject.rank.children)
    return next((one.tracer_pid for one in processes if one.pid == pid), 0)


def spelt(step: Step, nodes: Mapping[str, Node]) -> str:
    """Write a step so that it can be run from where hangtop runs.

    On this machine a command is what it is. For another node hangtop's own commands get the
    options that lead there, and all others go through the shell by which the node is reached.
    """
    if isinstance(step, str):
        return clean(step, 600)
    # Not cleaned once it is quoted: what is taken out, or cut off, may be a closing quote.
    text = _spelt(step, nodes.get(step.node))
    return f"{clean(step.words)}: {text}" if step.words else text


def _spelt(command: Command, node: Node | None) -> str:
    text = clean(command.text, MAX_COMMAND)
    if node is None or node.shell is None:
        return text
    program, _, rest = text.partition(" ")
    if program == "hangtop":
        what, _, more = rest.partition(" ")
        return f"hangtop {what} {node.options} {more}".rstrip()
    fact = node.capabilities.get("py-spy")
    path = fact.path if program == "py-spy" and fact is not None else None
    if path and not path.startswith("/proc/"):
        # It may be there only because hangtop brought it.
        text = f"{word(path) or program} {rest}"
    if "--sudo" in node.options.split():
        text = f"sudo sh -c {shlex.quote(text)}" if _COMPOUND.search(text) else f"sudo {text}"
    return f"{node.shell} {shlex.quote(text)}"
