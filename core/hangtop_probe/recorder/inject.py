"""gdb calls torch in a rank to write its flight recorder: only if asked for, only where it is safe.

Seen with CPython 3.11, gdb 13 and gloo ranks that hang: with the main thread asleep in a
system call and nobody holding the GIL, `PyGILState_Ensure` returns at once, and after half a second
the rank goes on as before. Where another thread holds the GIL the call waits for it, and ending gdb
meanwhile kills the rank (SIGSEGV as soon as the GIL is free); where a thread is in state D or T,
attaching hangs and may leave the rank stopped. So both are refused, and gdb, once it runs, is never
ended: not by a deadline, not by cancelling, not by the end of the probe. Nor does it come to a rank
before it has called into a process of the probe's own without harm (`gdbcalls`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Dict, Optional

from ..node import permission
from ..proc import procfs
from ..stacks import stacks, tracing
from ..wire.tools import clean_environment
from . import gdbcalls
from .recorderread import Told

if TYPE_CHECKING:
    from ..wire.tools import Tools
    from .recorderways import Facts

SECONDS = 120.0
"""How long to wait for gdb; it runs for half a second where all is well."""
_SPY_SECONDS = 10.0
"""How long py-spy may take to say who holds the GIL."""
_MAX_SAID = 1 << 16
"""Bytes that are read of what gdb says: as many as a pipe holds."""
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


def check(facts: Facts, tools: Tools, rights: permission.Rights, cancel: threading.Event) -> str:
    """Look whether gdb may call into a rank; return the path of gdb.

    Raises:
        Told: it may not, and why.
    """
    pid = facts.pid
    gdb = shutil.which("gdb")
    if gdb is None:
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
    refused = gdbcalls.tried(gdb, tools, cancel)
    if refused is not None:
        raise refused.again()
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
    return gdb


def _check_states(pid: int) -> str:
    """Return the state of the main thread, where no thread is stopped, traced or in state D."""
    states = procfs.states(pid)
    if not states:
        raise Told("gone")
    if tracing.halted(states).busy:
        tid, letter = next((t, s) for t, s in sorted(states.items()) if s in "DTt")
        raise Told("halted", thread=tid, state=letter)
    return states.get(pid, "?")


def dump(facts: Facts, gdb: str) -> str:
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
        said = _gdb(gdb, pid, _CODE.format(names=_NCCL if facts.nccl else _OTHER, path=path))
    except OSError as error:
        raise Told("not-started", why=os.strerror(error.errno or 0)) from None
    running = _running(pid)
    if said is None:
        raise Told("still", seconds="%g" % SECONDS)
    if not running or not os.path.lexists(seen):
        forget(seen)
        if running and said:
            raise Told("gdb-said", said=said)
        raise Told("nothing-written" if running else "not-running")
    return seen


def forget(path: str) -> None:
    """Remove what a rank wrote for `dump`."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _gdb(gdb: str, pid: int, code: str) -> Optional[str]:
    """Run gdb to its end; return its words, None when it is still at it, and is left to that."""
    text = "exec(bytes.fromhex('%s'))" % code.encode("utf-8").hex()
    # One expression, as gdb goes on with its next command after one that failed: without the GIL.
    # The text comes first: should there be no memory for it, the GIL is not taken yet.
    call = (
        'call ($t = (char*)"%s", $g = (int)PyGILState_Ensure(),'
        " (int)PyRun_SimpleString($t), (void)PyGILState_Release($g))"
    )
    reads, writes = os.pipe()
    # A full pipe takes no more, and gdb does not wait. It has the other end open as well: else it
    # would end by SIGPIPE, in the middle of its call, once the probe has.
    os.set_blocking(reads, False)
    os.set_blocking(writes, False)
    try:
        # Not through `Tools`: those end with the probe, and gdb must not.
        running = subprocess.Popen(
            gdbcalls.command(gdb, pid, call % text),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writes,
            env=clean_environment(),
            start_new_session=True,
            pass_fds=(reads,),
        )
        try:
            running.wait(SECONDS)
        except subprocess.TimeoutExpired:
            threading.Thread(target=running.wait, daemon=True).start()
            return None
        with contextlib.suppress(BlockingIOError):  # it said nothing
            return gdbcalls.words(os.read(reads, _MAX_SAID))
        return ""
    finally:
        os.close(reads)
        os.close(writes)


def _running(pid: int) -> bool:
    """Whether a rank runs again after gdb; a stop that is left is taken back."""
    return tracing.resume(pid, wait=2.0) and bool(procfs.states(pid))


def offered(facts: Facts) -> Optional[Dict[str, Any]]:
    """Whether gdb could be tried at all, for those who did not allow it."""
    if facts.loaded and shutil.which("gdb") is not None:
        return {"way": "inject", "code": "not-allowed", "args": {}}
    return None
