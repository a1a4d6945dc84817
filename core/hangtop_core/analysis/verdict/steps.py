"""Next steps: advice in words, and commands that know on which node they are to be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.model.node import disk_space
from hangtop_core.text.addresses import host_of, is_name, port_of
from hangtop_core.text.commands import (
    Advice,
    Command,
    HiddenWordError,
    Sign,
    Spelt,
    Step,
    Word,
    is_shown,
    shown,
    spell,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Node, Process, Rank

MAX_WORD = 300
LENGTHS = Advice(
    "compare what each was to send with how much the other one reads, as by a length before it"
)
ORDER = Advice("let neighbours call send and recv in opposite order, or use batch_isend_irecv")


def on(subject: Subject, *words: Word, why: str = "") -> Command:
    """A command for the node of a rank."""
    return Command(subject.rank.node, words, why)


def on_node(node: str, *words: Word, why: str = "") -> Command:
    """A command for a node; for any where none is named."""
    return Command(node, words, why)


def word(text: str) -> str | None:
    """Return text of a node where it may be an operand of a command, else None.

    It may not where it is empty or long, looks like an option, or holds something that no terminal
    shows.
    """
    is_operand = text and text[0] not in "- " and len(text) <= MAX_WORD and is_shown(text)
    return text if is_operand else None


def as_host(name: str) -> str | None:
    """Return the name or address of a host for use in a command, None where it can be neither."""
    return name if is_name(name) else None


def answers(address: str) -> tuple[Word, ...]:
    """Try to connect to `HOST:PORT`; bash does it by itself, where nc is not installed.

    Empty where that is no host and port.
    """
    host, port = as_host(host_of(address)), port_of(address)
    if host is None or not (port.isascii() and port.isdecimal()) or port == "0":
        return ()
    connect = f"</dev/tcp/{host}/{port}"
    return ("timeout", "5", "bash", "-c", connect, Sign.AND, "echo", "connected")


def holders_step(subject: Subject, path: str) -> Command:
    """See who has a file of a rank's node open."""
    words = ("fuser", "-v", path, Sign.MERGED, Sign.PIPE, "grep", "-v", "^Cannot")
    return on(subject, *words, why="see who has it open")


def who_is(pid: int) -> tuple[Word, ...]:
    """See whose a process is, since when it runs, and by which command."""
    return ("ps", "-o", "pid,user,etime,args", "-p", pid)


def sockets_step(subject: Subject, pid: int, why: str = "") -> Command:
    """See the TCP connections of a process, in the network that its rank is in.

    What -i tells of one is on the line after it.
    """
    process = subject.rank.process
    inside = ("nsenter", "-t", process.pid, "-n") if process.net_ns else ()
    return on(subject, *inside, "ss", "-tnpi", Sign.PIPE, "grep", "-A1", f"pid={pid},", why=why)


def _printed_to(rank: Rank) -> list[str]:
    """The files a rank prints to that have `log` in their path, stderr first."""
    told = reversed(rank.process.outputs)
    paths = [path for path in told if path.startswith("/") and "log" in path]
    return [path for path in dict.fromkeys(paths) if word(path)]


def tails(rank: Rank) -> list[tuple[Word, ...]]:
    """The ends of the files a rank prints to: of stderr first, where a traceback is."""
    return [("tail", "-n", "50", path) for path in _printed_to(rank)]


def first_errors(rank: Rank, others: Iterable[Rank]) -> list[Command]:
    """The first traceback in a file that others print to as well: its end may be all theirs."""
    shared = {path for one in others if one is not rank for path in one.process.outputs}
    why = "see the first error in the log that ranks share: its end may be of those that waited"
    return [
        on_node(rank.node, "grep", "-n", "-m", "1", "-A", "30", "Traceback", path, why=why)
        for path in _printed_to(rank)
        if path in shared
    ]


def thaw(process: Process, node: str) -> tuple[Command, ...]:
    """See who is in the frozen group of a process, and thaw it; version 1 has its own freezer."""
    folder = process.frozen_by or ""
    name, text = ("cgroup.freeze", "0") if "freezer" not in folder else ("freezer.state", "THAWED")
    file, members = word(f"{folder}/{name}"), word(f"{folder}/cgroup.procs")
    if not folder or not file or not members:
        return ()
    return (on_node(node, "cat", members), on_node(node, "echo", text, Sign.INTO, file))


def room_steps(case: Case, subject: Subject, mounts: Collection[str]) -> tuple[Command, ...]:
    """See how full file systems of a rank's node are, or quotas of its user on them."""
    used_up = disk_space.of(case.nodes.get(subject.rank.node), subject.rank.process)
    found = [on(subject, *disk_space.command(one)) for one in used_up if one.mount in mounts]
    others = {one.mount for one in used_up}
    shown = tuple(one for one in mounts if one not in others and word(one))
    full = on(subject, "df", "-h", *shown, Sign.THEN, "df", "-i", *shown)
    return (*found[:2], *((full,) if shown else ()))


def strace_step(subject: Subject, pid: int) -> Command:
    """Trace a process of a rank for some seconds, or see who does so already.

    Without an end of its own, strace would stay on a silent process after Ctrl-C: ssh without a
    terminal passes no signal on.
    """
    tracer = _tracer(subject, pid)
    if tracer:
        why = "no second one can trace it: see what writes its system calls already, and where to"
        return on(subject, *who_is(tracer), why=why)
    return on(subject, "timeout", "10", "strace", "-f", "-p", pid)


def dump_step(
    subject: Subject, options: str = "", *, pid: int | None = None, why: str = ""
) -> Command:
    """See the stack of a rank, or of a child of it, with options of `hangtop dump`."""
    pid = pid or subject.pid
    return on(subject, "hangtop", "dump", "--pid", pid, *options.split(), why=why)


def profile_step(subject: Subject, options: str = "-d 10") -> Command:
    """Sample where a rank spends its time, for 10 s where options of py-spy do not say how long."""
    into = ("-o", "profile.svg", "--pid", subject.pid)
    return on(subject, "py-spy", "record", *options.split(), *into)


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


def spelt(step: Step, nodes: Mapping[str, Node]) -> Spelt:
    """Write a step so that it can be run from where hangtop runs.

    On this machine a command is what it is. For another node hangtop's own commands get the
    options that lead there, and all others go through the shell by which the node is reached. Where
    that is not known, as in a capture, it is said on which node a command is to be run.

    Raises:
        TypeError: it is a plain text.
    """
    if not isinstance(step, Command):
        return shown(step)
    node = nodes.get(step.node)
    where = f"on {node.name}" if node is not None and node.shell == "" else ""
    why = ", ".join(filter(None, (step.why, where)))
    try:
        return shown(Command("", _from_here(step.words, node), why))
    except HiddenWordError:
        return shown(Command("", step.words, why))  # says why it cannot be shown


def _from_here(words: tuple[Word, ...], node: Node | None) -> tuple[Word, ...]:
    """The words that run a command on a node."""
    if node is None or not node.shell:
        return words
    if words[0] == "hangtop":
        return (*words[:2], *words_of(node.options), *words[2:])
    fact = node.capabilities.get("py-spy")
    path = fact.path if words[0] == "py-spy" and fact is not None else None
    if path and not path.startswith("/proc/"):
        # It may be there only because hangtop brought it.
        words = (word(path) or "py-spy", *words[1:])
    if "--sudo" in node.options.split():
        is_script = any(isinstance(one, Sign) for one in words)
        words = ("sudo", "sh", "-c", spell(words)) if is_script else ("sudo", *words)
    return (*words_of(node.shell), spell(words))
