"""Ways to get a pdb prompt in a running rank, or why there is none. Pure.

Two ways: the hook of `hangtop run` (`hangtop_hook.prompt`), requested by a signal, and the same
prompt brought into a rank by Python 3.14's remote debugging (PEP 768, `sys.remote_exec`), with the
same Python on both ends. Both need the main thread to return to the interpreter: a rank that is
blocked in C is reported as that, and the request is withdrawn.

`python -m pdb -p PID` of Python 3.14 is not used: it waits without an end, listens on a loopback
port without a password (Lib/pdb.py, `attach`), and stays with the rank after `c`. Remote debugging
needs, by Python/remote_debug.h of 3.14: the right to write into the process (`process_vm_writev`,
as ptrace), the same minor version, and no setting that forbids it.
"""

from __future__ import annotations

import base64
import functools
import re
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

import hangtop_hook
from hangtop_core.analysis.activity import Reader
from hangtop_core.analysis.verdict.steps import spelt
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Command, stored, words_of
from hangtop_hook import carried
from hangtop_hook.terminal import BLOCKED, ENDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Node, Rank, Snapshot

_PROMPT = "/hangtop_hook/pdbsocket.py"
WAIT_S = 3.0
"""Seconds in which the main thread must return to the interpreter."""
NOT_FOUND = 127
"""Status of shells, ssh and setpriv(1) for a missing command."""
_UNPACK = 'exec(zlib.decompress(base64.b64decode("%s")))'
_REMOTE = re.compile(r"python3\.(1[4-9]|[2-9]\d)t?$")
FORBIDDEN = "PYTHON_DISABLE_REMOTE_DEBUG"
_FORBIDS = re.compile(r"^(-X)?disable[-_]remote[-_]debug$")
_IN_C = frozenset(
    {
        "collective",
        "work-wait",
        "send",
        "recv",
        "backward",
        "init",
        "new-group",
        "store",
        "gil",
        "io",
    }
)
COST = (
    "The rank stands still while the prompt is open; the ranks that wait for it, and their "
    "timeouts, do not. c or q, the end of input, and the end of hangtop let it go on"
)


class Debugging(Struct, frozen=True):
    """The options for one rank."""

    argv: tuple[str, ...] = ()
    """The command for the prompt, from here; empty if there is no way."""
    why: str | None = None
    """Why there is no way."""
    doing: str = ""
    """The rank's activity."""
    steps: tuple[str, ...] = ()
    """Alternatives."""
    warning: str | None = None
    """Why an attempt will probably fail."""

    @property
    def shown(self) -> str:
        """The command for people: without the program that it carries."""
        return stored(self.argv).replace(carried_program(), "...")


def debugging(
    snapshot: Snapshot, rank: Rank, node: Node | None, *, terminal: bool = True
) -> Debugging:
    """Return the way to a prompt in a rank.

    Args:
        snapshot: the observed state.
        rank: the rank.
        node: its node.
        terminal: whether a person types at the prompt, rather than a file or a pipe.
    """
    activity = Reader(snapshot.stacks).rank(rank)
    place = f" at {clean(activity.at, 200)}" if activity.site is not None else ""
    doing = f"{rank.name} {clean(activity.text, 200)}{place}"
    steps = instead(rank, node)
    if rank.ended:
        return Debugging(why="it has exited", doing=doing)
    if rank.state in ("stopped", "traced"):
        return Debugging(why=f"it is {rank.state}", doing=doing, steps=steps)
    if activity.kind == "prompt" and _ours(snapshot, rank):
        return Debugging(
            why="hangtop holds a prompt in it already: leave that one, in its terminal, with c",
            doing=f"{rank.name} stands still",
            steps=steps,
        )
    if activity.kind == "prompt":
        return Debugging(
            why="it sits at a prompt already (breakpoint(), pdb.set_trace() or dist.breakpoint() "
            "left in its code): answer it where the rank reads its input from, its launcher's "
            "terminal, with c; or take the line out and start again",
            doing=doing,
            steps=steps,
        )
    if node is None or node.uid is None or rank.process.uid != node.uid:
        user = clean(rank.process.user, 60)
        return Debugging(
            why=f"it belongs to {user}, and only they get a prompt: run hangtop as {user}, "
            "without sudo",
            doing=doing,
            steps=steps,
        )
    blocked = activity.kind in _IN_C
    words = _hooked(rank, node)
    warning = "it is in C code, and may not come back to the interpreter" if blocked else None
    if words is None:
        why = _not_remotely(rank, node)
        if why is not None or rank.process.exe is None:
            start = "hangtop run -- COMMAND starts a job so that this works"
            return Debugging(why=why, doing=doing, steps=(*steps, start))
        carry = ("-S", "-s", "-c", carried_program())
        words = (rank.process.exe, *carry, str(rank.process.pid), f"{WAIT_S:g}")
    return Debugging(
        argv=words if node.shell is None else _on_node(node.shell, words, terminal=terminal),
        doing=doing,
        steps=steps,
        warning=warning,
    )


def _on_node(shell: str, words: Sequence[str], *, terminal: bool) -> tuple[str, ...]:
    """Return the command that runs ``words`` on a node, by its shell.

    srun prints only whole lines, which a prompt is not; it takes two Ctrl-C, and ignores the first.
    With a terminal of its own there, the prompt has both. A shell that waited for it (dash does)
    would take a Ctrl-C as its own, and end as if there had been no prompt.
    """
    command = list(words_of(shell))
    if "srun" in command:
        command.insert(command.index("srun") + 1, "--pty" if terminal else "--unbuffered")
    return (*command, f"exec {stored(words)}")


def _ours(snapshot: Snapshot, rank: Rank) -> bool:
    """Whether the main thread sits at the prompt of hangtop's hook."""
    threads = rank.sample.threads if rank.sample is not None else ()
    frames = snapshot.stacks.get(threads[0].stack, ()) if threads else ()
    return any(frame.file.endswith(_PROMPT) for frame in frames)


def _hooked(rank: Rank, node: Node) -> tuple[str, ...] | None:
    """Return the command on the node that uses the hook of `hangtop run`; None without it."""
    run, exe = rank.process.env.get(hangtop_hook.RUN_DIR), rank.process.exe
    if not run:
        return None
    is_local = node.shell is None
    folder = Path(hangtop_hook.__file__).parent if is_local else Path(run) / "hook/hangtop_hook"
    python = sys.executable if is_local else exe or "python3"
    return (python, "-S", "-s", str(folder / "terminal.py"), str(rank.process.pid), f"{WAIT_S:g}")


def _not_remotely(rank: Rank, node: Node) -> str | None:
    """Return why Python's remote debugging cannot reach a rank; None if it should."""
    process = rank.process
    if process.exe is None or _REMOTE.search(process.exe) is None:
        version = clean(process.versions.get("python", ""), 20)
        older = f"its Python ({version}) is older than 3.14" if version else "its Python is older"
        return f"it was not started by `hangtop run`, and {older}"
    if process.env.get(FORBIDDEN) or any(map(_FORBIDS.search, process.cmdline)):
        return (
            f"it was not started by `hangtop run`, and {FORBIDDEN} or -X disable-remote-debug "
            "forbids Python's own way"
        )
    right = node.capabilities.get("ptrace")
    if right is not None and not right.ok:
        why, fix = clean(right.why or "", 200), clean(right.fix or "", 200)
        return f"Python may not write into it: {why}" + (f" (fix: {fix})" if fix else "")
    return None


@functools.cache
def carried_program() -> str:
    """Return the program for the rank's own Python, as one word, for `hangtop_hook.carried`."""
    folder = Path(hangtop_hook.__file__).parent
    names = dict.fromkeys((*carried.ASKER, *carried.ASKED))
    sources = {name: (folder / f"{name}.py").read_text("utf-8") for name in names}
    then = (
        "modules = sys.modules[package]\n"
        "modules.carried.SOURCES.update(sources)\n"
        "sys.exit(modules.terminal.main(sys.argv[1:], remote=True))\n"
    )
    packed = base64.b64encode(zlib.compress(carried.program(carried.ASKER, sources, then).encode()))
    # No single quotes, so that shell quoting, even twice, leaves it unchanged.
    return f'"hangtop debug";import base64,zlib;{_UNPACK % packed.decode()}'


def instead(rank: Rank, node: Node | None) -> tuple[str, ...]:
    """Return commands that show where a rank is without its help."""
    pid = rank.process.pid
    nodes = {rank.node: node} if node is not None else {}
    dump = ("hangtop", "dump", "--pid", pid, "--native", "--each")
    steps = (
        Command(rank.node, dump, "its stack with C frames"),
        Command(
            rank.node,
            ("gdb", "-p", pid, "-batch", "-ex", "thread apply all bt"),
            "all its threads, also those that Python does not know; stops it for seconds",
        ),
    )
    return tuple(spelt(step, nodes).text for step in steps)


def outcome(status: int, plan: Debugging) -> Sequence[str]:
    """Return the outcome once the prompt is over or failed: one line each."""
    if status == 0:
        return ()
    if status == BLOCKED:
        what = f"{plan.doing}: blocked in C, so it does not come back to the interpreter"
        return (f"{what}, and pdb cannot stop it there. Instead:", *plan.steps)
    if status == ENDED:
        return ("the rank ended while its prompt was open",)
    if status == NOT_FOUND:
        what = "the rank's Python is not to be found on the node: the rank is in a container, or "
        inside = "run hangtop inside the container (docker exec, kubectl exec)"
        return (f"no prompt: {what}its Python was removed. Instead:", inside, *plan.steps)
    return (f"no prompt (status {status}): {plan.doing}. Instead:", *plan.steps)
