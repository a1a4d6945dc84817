"""Calling functions of a process by gdb: how, and whether that does any harm on this node.

Seen with gdb 13.1 of Debian 12 where the processor has AMX (Sapphire Rapids): every call fails in
its middle with `Couldn't write extended state status: Bad address.`, after registers were changed.
The system call that was interrupted is not restarted then and returns 514 (ERESTARTNOHAND): a rank
in `time.sleep` died of an OSError. So before gdb comes to a rank it makes a call into a process of
the probe's own, which waits in such a system call and has to go on as if nothing had been.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from ..proc import procfs
from ..stacks import stacks, trial
from ..wire.tools import Done, await_end, has_ended
from .recorderread import Told

if TYPE_CHECKING:
    from ..wire.tools import Tools

SECONDS = 15.0
"""How long gdb may take for the call that is tried; it takes 0.3 s where all is well."""
_START_S = 10.0
_GO_ON_S = 5.0
_STEP_S = 0.2
_READ = 1 << 16
"""Bytes that are looked at of what a program wrote, the last ones."""
MAX_WORDS = 150
"""Characters that are kept of what a program said."""
# select(2) is interrupted with ERESTARTNOHAND, as `time.sleep` is, and ends when it is told to.
# PR_SET_PTRACER with PR_SET_PTRACER_ANY: Yama lets ranks be attached to that have done the same.
_WAITER = (
    "import select, sys\n"
    "try:\n"
    "    import ctypes\n"
    "    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)\n"
    "except Exception:\n"
    "    pass\n"
    "sys.stdout.write('ready\\n')\n"
    "sys.stdout.flush()\n"
    "if not select.select([0], [], [], 60)[0]:\n"
    "    sys.exit('was never told to go on')\n"
    "sys.stdout.write('went on\\n')\n"
)
_CALL = "call (int)PyGILState_Check()"
_RESULT = re.compile(rb"^\$\d+ = [01]$", re.MULTILINE)
_REFUSED = "ptrace: "
"""How gdb begins to say why it may not attach; what it says afterwards follows from that."""
_ASIDE = re.compile(r"warning: |\d+\t")
"""What gdb says by the way, also where all is well; a number stands before a line of source."""

_outcomes: Dict[Tuple[object, ...], Optional[Told]] = {}
"""By gdb: why it must not call into ranks on this node, None where it may."""
_trying = threading.Lock()


def command(gdb: str, pid: int, call: str) -> List[str]:
    """Return what lets gdb run one command, which calls into a process, and let that go."""
    argv = [gdb, "-nx", "-batch"]
    # Libraries are not searched for symbols: that takes ten times as long, with the rank stopped.
    # Nor are scripts run that lie beside the rank's files: they are whose the rank is.
    for setting in ("auto-load no", "debuginfod enabled off", "auto-solib-add off"):
        argv += ["-iex", "set " + setting]
    # A signal that stops the rank within a call breaks the call off, which ends the rank later.
    for signals in ("all", "SIGINT"):
        argv += ["-iex", "handle %s nostop noprint pass" % signals]
    return [*argv, "-p", str(pid), "-ex", "sharedlibrary libpython", "-ex", call]


def words(err: bytes) -> str:
    """Return the line of what a program wrote that says best why it failed; empty without one."""
    lines = []
    for line in procfs.text(err[-_READ:]).splitlines():
        if not _ASIDE.match(line):
            line = "".join(one if one.isprintable() else " " for one in line)
            lines.append(" ".join(line.split())[:MAX_WORDS])
    lines = [line for line in lines if line]
    refused = [line for line in lines if line.startswith(_REFUSED)]
    return (refused or lines or [""])[-1]


def tried(gdb: str, tools: Tools, cancel: threading.Event) -> Optional[Told]:
    """Return why this gdb must not call into ranks, None where it may; tried once for all ranks.

    Who asks meanwhile waits for the same outcome; one that was given up is not kept.
    """
    key = _identity(gdb)
    while not _trying.acquire(timeout=_STEP_S):
        if cancel.is_set():
            return _untried("given up")
    try:
        if key in _outcomes:
            return _outcomes[key]
        found = attempt(gdb, tools, cancel)
        if not cancel.is_set():
            _outcomes[key] = found
        return found
    finally:
        _trying.release()


def _identity(gdb: str) -> Tuple[object, ...]:
    """What changes when another gdb is installed."""
    try:
        found = os.stat(gdb)
    except OSError:
        return (gdb,)
    return gdb, found.st_dev, found.st_ino, found.st_mtime_ns


def attempt(gdb: str, tools: Tools, cancel: threading.Event) -> Optional[Told]:
    """Let gdb call into a process of our own; return what was wrong with that, None if nothing."""
    try:
        waiter = tools.start([sys.executable, "-I", "-S", "-c", _WAITER], stdin=subprocess.PIPE)
    except OSError as error:
        return _untried("no process could be started: %s" % error)
    try:
        if not trial.ready(waiter, _START_S):
            return _untried("a Python started for it did not get going in %g s" % _START_S)
        try:
            done = tools.run(command(gdb, waiter.pid, _CALL), SECONDS, cancel)
        except OSError as error:
            return _untried("gdb does not start: %s" % error)
        if done.code is None:
            return _untried(_ended(done))
        return judged(done, _broken(waiter, tools))
    finally:
        tools.end(waiter)


def _untried(why: str) -> Told:
    return Told("untried", why=why)


def _ended(done: Done) -> str:
    """Why gdb was ended."""
    if done.timed_out:
        return "gdb gave no answer in %g s" % SECONDS
    return "gdb wrote without end" if done.flooded else "given up"


def judged(done: Done, broken: Optional[str]) -> Optional[Told]:
    """Judge gdb by what it said, and by what became of the process it called into."""
    said = words(done.err)
    if broken is not None:
        return Told("harmful", what=broken, said=said or "nothing")
    if said.startswith(_REFUSED):
        return Told("no-attach", said=said)
    if not _RESULT.search(done.out):
        return Told("no-calls", said=said or "nothing")
    return None


def _broken(waiter: "subprocess.Popen[bytes]", tools: Tools) -> Optional[str]:
    """Tell the process to go on, and return what it did instead; None where it did."""
    assert waiter.stdin is not None  # noqa: S101  # they were opened as pipes
    assert waiter.stdout is not None  # noqa: S101
    assert waiter.stderr is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError):  # it has ended
        os.write(waiter.stdin.fileno(), b"\n")
    await_end(waiter, time.monotonic() + _GO_ON_S)
    if not has_ended(waiter):
        return "did not go on within %g s" % _GO_ON_S
    said, complained = (os.read(one.fileno(), 1 << 12) for one in (waiter.stdout, waiter.stderr))
    tools.forget(waiter)
    if waiter.returncode == 0 and said == b"went on\n":
        return None
    why = words(complained)
    return "died of " + why if why else stacks.ended(waiter.returncode)
