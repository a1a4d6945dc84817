"""gdb calls torch in a rank to write its flight recorder: only if asked for, only where it is safe.

Seen with CPython 3.11, gdb 13 and gloo ranks that hang: with the main thread asleep in a
system call and nobody holding the GIL, `PyGILState_Ensure` returns at once, and after half a second
the rank goes on as before. Where another thread holds the GIL the call waits for it, and ending gdb
meanwhile kills the rank (SIGSEGV as soon as the GIL is free); where a thread is in state D or T,
attaching hangs and may leave the rank stopped. So both are refused, and gdb, once it runs, is never
ended: not by a deadline, not by cancelling, not by the end of the probe.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Dict, Optional

from . import permission, procfs, stacks, tracing
from .recorderread import Told
from .tools import clean_environment

if TYPE_CHECKING:
    from .recorderways import Facts
    from .tools import Tools

SECONDS = 120.0
"""How long to wait for gdb; it runs for half a second where all is well."""
_SPY_SECONDS = 10.0
"""How long py-spy may take to say who holds the GIL."""
_CODE = (
    "import os,sys\n"
    "try:\n"
    "    m=sys.modules['torch._C._distributed_c10d']\n"
    "    a=[getattr(m,n)(True,False) for n in {names!r} if hasattr(m,n)]\n"
    "    d=max((d.encode() if isinstance(d,str) else d for d in a),key=len)\n"
    "    fd=os.open({path!r},os.O_WRONLY|os.O_CREAT|os.O_EXCL|os.O_NOFOLLOW,0o600)\n"
    "    while d:\n"
    "        d=d[os.write(fd,d):]\n"
    "    os.close(fd)\n"
    "except BaseException:\n"
    "    pass\n"
)
# Without stacks: with them torch imports a compiler into the rank first, which takes seconds.
# Builds for CUDA load NCCL also where all groups are gloo's: the recorder that holds more is used.
_NCCL = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_OTHER = ("_dump_fr_trace_json",)


def check(facts: Facts, tools: Tools, rights: permission.Rights, cancel: threading.Event) -> None:
    """Look whether gdb may call into a rank.

    Raises:
        Told: it may not, and why.
    """
    pid = facts.pid
    if shutil.which("gdb") is None:
        raise Told("no-gdb")
    if not facts.loaded:
        raise Told("no-torch")
    if not permission.may_attach(pid):
        why, fix = permission.why_denied(pid, rights)
        raise Told("denied", why=why, fix=fix)
    tracer = procfs.value_of(procfs.read("/proc/%d/status" % pid) or b"", b"TracerPid") or 0
    if tracer:
        raise Told("traced", by=tracer)
    _check_states(pid)
    seen = stacks.sample(tools, pid, "nonblocking", False, _SPY_SECONDS, cancel)
    if seen.failure is not None:
        raise Told("gil-unknown", why=seen.failure["text"])
    holder = next((thread for thread in seen.threads if thread["gil"]), None)
    if holder is not None:
        raise Told("gil", thread=holder["name"] or holder["tid"])
    # Once more, as py-spy takes its time; and the main thread, which is to make the call, rests.
    state = _check_states(pid)
    if state != "S":
        raise Told("awake", state=state)


def _check_states(pid: int) -> str:
    """Return the state of the main thread, where no thread is stopped, traced or in state D."""
    states = procfs.states(pid)
    if not states:
        raise Told("gone")
    if tracing.halted(states).busy:
        tid, letter = next((t, s) for t, s in sorted(states.items()) if s in "DTt")
        raise Told("halted", thread=tid, state=letter)
    return states.get(pid, "?")


def dump(facts: Facts) -> str:
    """Let gdb call torch's dump in a rank that `check` found safe; return the file it wrote.

    The file is to be removed with `forget`. Nothing is made here beforehand: the rank's /tmp can be
    a link or a mount, and lead whoever makes something there elsewhere on the node.

    Raises:
        Told: there is no file, and why.
    """
    pid = facts.pid
    path = "/tmp/hangtop-dump-" + os.urandom(8).hex()  # noqa: S108  # opened with O_EXCL
    seen = "/proc/%d/root%s" % (pid, path)
    if not os.access(os.path.dirname(seen), os.W_OK):
        raise Told("no-folder", why="it cannot be written to")
    try:
        ended = _gdb(pid, _CODE.format(names=_NCCL if facts.nccl else _OTHER, path=path))
    except OSError as error:
        raise Told("not-started", why=os.strerror(error.errno or 0)) from None
    running = _running(pid)
    if not ended:
        raise Told("still", seconds="%g" % SECONDS)
    if not running or not os.path.lexists(seen):
        forget(seen)
        raise Told("nothing-written" if running else "not-running")
    return seen


def forget(path: str) -> None:
    """Remove what a rank wrote for `dump`."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _gdb(pid: int, code: str) -> bool:
    """Run gdb to its end; False when it is still at it, and is left to that."""
    text = "exec(bytes.fromhex('%s'))" % code.encode("utf-8").hex()
    # One expression, as gdb goes on with its next command after one that failed: without the GIL.
    # The text comes first: should there be no memory for it, the GIL is not taken yet.
    call = (
        'call ($t = (char*)"%s", $g = (int)PyGILState_Ensure(),'
        " (int)PyRun_SimpleString($t), (void)PyGILState_Release($g))"
    )
    argv = ["gdb", "-nx", "-batch"]
    # Libraries are not searched for symbols: that takes ten times as long, with the rank stopped.
    # Nor are scripts run that lie beside the rank's files: they are whose the rank is.
    for setting in ("auto-load no", "debuginfod enabled off", "auto-solib-add off"):
        argv += ["-iex", "set " + setting]
    # A signal that stops the rank within a call breaks the call off, which ends the rank later.
    for signals in ("all", "SIGINT"):
        argv += ["-iex", "handle %s nostop noprint pass" % signals]
    argv += ["-p", str(pid), "-ex", "sharedlibrary libpython", "-ex", call % text]
    # Not through `Tools`: those end with the probe, and gdb must not.
    gdb = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
        start_new_session=True,
    )
    try:
        gdb.wait(SECONDS)
    except subprocess.TimeoutExpired:
        threading.Thread(target=gdb.wait, daemon=True).start()
        return False
    return True


def _running(pid: int) -> bool:
    """Whether a rank runs again after gdb; a stop that is left is taken back."""
    return tracing.resume(pid, wait=2.0) and bool(procfs.states(pid))


def offered(facts: Facts) -> Optional[Dict[str, Any]]:
    """Whether gdb could be tried at all, for those who did not allow it."""
    if facts.loaded and shutil.which("gdb") is not None:
        return {"way": "inject", "code": "not-allowed", "args": {}}
    return None
