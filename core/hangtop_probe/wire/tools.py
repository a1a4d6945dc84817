"""Run py-spy, strace and other tools: bounded, cancellable, and never left behind.

Every tool dies with the probe, also when the probe is killed: it is started through `setpriv
--pdeathsig` or, where util-linux does not have it, through a few lines of Python that make the same
prctl(2) call. A tool is ended by a signal that lets a tracer detach, then by SIGKILL, together with
its children; its output is bounded.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

GRACE = 1.0
"""Seconds a tool has to end after SIGTERM before SIGKILL; the head gives the probe two."""
MAX_OUTPUT = 32 << 20
"""Bytes a tool may write."""
_STEP = 0.2
_WRAPPER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, int(sys.argv[2]), 0, 0, 0);"
    " os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[3], sys.argv[3:])"
)


class Done(NamedTuple):
    """How a tool ended."""

    code: Optional[int]
    out: bytes
    err: bytes
    timed_out: bool = False
    cancelled: bool = False
    flooded: bool = False
    """It was ended because it wrote more than `MAX_OUTPUT`."""
    overdue: bool = False
    """It was ended because what it does to others took too long."""


def clean_environment() -> Dict[str, str]:
    """Return the environment for tools: nothing of Rust's, no locale, no preloads."""
    dropped = ("RUST_", "LD_PRELOAD", "PYTHON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    kept["LC_ALL"] = "C"
    return kept


def dying_with_us(setpriv: Optional[str], orphaned: int) -> List[str]:
    """Return what to put before a command, so that it gets a signal should this process die.

    The command is to be named by its path, unless there is a ``setpriv``.
    """
    if setpriv:
        return [setpriv, "--pdeathsig", signal.Signals(orphaned).name[3:]]
    return [sys.executable, "-I", "-S", "-c", _WRAPPER, str(os.getpid()), str(orphaned)]


class Tools:
    """Starts tools and knows which are running."""

    def __init__(self) -> None:
        self._running: Set["subprocess.Popen[bytes]"] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._setpriv = shutil.which("setpriv")
        self._env = clean_environment()

    def start(
        self,
        argv: Sequence[str],
        orphaned: int = signal.SIGKILL,
        stderr: int = subprocess.PIPE,
        stdin: int = subprocess.DEVNULL,
        env: Optional[Dict[str, str]] = None,
    ) -> "subprocess.Popen[bytes]":
        """Start ``argv``; raise OSError where that fails or the probe is ending.

        ``orphaned`` is the signal it gets should the probe die, or the thread that started it;
        ``stderr`` is where it writes to, and ``env`` its environment where that is to be another.
        """
        with self._lock:
            if self._closed:
                raise OSError("the probe is ending")
            process = subprocess.Popen(
                [*dying_with_us(self._setpriv, int(orphaned)), *argv],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._env if env is None else env,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def pids(self) -> Set[int]:
        """Return the tools that run now."""
        with self._lock:
            return {process.pid for process in self._running}

    def run(
        self,
        argv: Sequence[str],
        seconds: float,
        cancel: threading.Event,
        env: Optional[Dict[str, str]] = None,
        is_overdue: Callable[[], bool] = lambda: False,
    ) -> Done:
        """Run ``argv`` to its end, at most ``seconds``, or until ``cancel`` or ``is_overdue``."""
        process = self.start(argv, env=env)
        deadline = time.monotonic() + seconds
        output = _Output(process)
        while not output.complete():
            late, overdue = time.monotonic() > deadline, is_overdue()
            if late or overdue or cancel.is_set() or output.size > MAX_OUTPUT:
                self.end(process)
                cancelled = not late and cancel.is_set()
                return Done(None, b"", b"", late, cancelled, output.size > MAX_OUTPUT, overdue)
            output.read(min(_STEP, max(0.0, deadline - time.monotonic())))
        out, err = output.streams()
        self.forget(process)
        return Done(process.returncode, out, err)

    def end(self, process: "subprocess.Popen[bytes]", first: int = signal.SIGTERM) -> bool:
        """End a tool: ``first``, then SIGTERM, then SIGKILL; False if it will not go."""
        for number in sorted({first, signal.SIGTERM, signal.SIGKILL}, key=_gentle_first):
            if has_ended(process):
                break
            _signal_group(process, number)
            await_end(process, time.monotonic() + GRACE)
        gone = has_ended(process)
        if gone:
            self.forget(process)
        return gone

    def forget(self, process: "subprocess.Popen[bytes]") -> None:
        """Close the pipes of a tool that has ended, and end what it may have left behind."""
        with self._lock:
            self._running.discard(process)
        _signal_group(process, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was written to it is lost
                    stream.close()

    def close(self) -> None:
        """End all tools and start none any more."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for process in running:
            await_end(process, deadline)
            _signal_group(process, signal.SIGKILL)


class _Output:
    """The output of a tool, read as it arrives."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.size = 0
        self._process = process
        self._parts: Dict[int, List[bytes]] = {1: [], 2: []}
        self._open = selectors.DefaultSelector()
        for number, stream in ((1, process.stdout), (2, process.stderr)):
            assert stream is not None  # noqa: S101  # they were opened as pipes
            self._open.register(stream, selectors.EVENT_READ, number)

    def read(self, seconds: float) -> None:
        """Read available output, or wait for it at most ``seconds``."""
        if not self._open.get_map():
            await_end(self._process, time.monotonic() + seconds)
            return
        for key, _ in self._open.select(seconds):
            data = os.read(key.fd, 1 << 16)
            self._parts[key.data].append(data)
            self.size += len(data)
            if not data:
                self._open.unregister(key.fileobj)

    def complete(self) -> bool:
        """Whether the tool has ended and everything was read."""
        done = not self._open.get_map() and has_ended(self._process)
        if done:
            self._open.close()
        return done

    def streams(self) -> Tuple[bytes, bytes]:
        """Return standard output and error."""
        return b"".join(self._parts[1]), b"".join(self._parts[2])


def _gentle_first(number: int) -> int:
    return [signal.SIGINT, signal.SIGTERM, signal.SIGKILL].index(signal.Signals(number))


def has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a tool has ended, without reaping it: until then its pid is not reused."""
    if process.returncode is not None:
        return True
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, process.pid, how) is not None
    except ChildProcessError:
        return True  # another thread has just reaped it


def await_end(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Wait for the end of a tool until ``deadline``, on the monotonic clock."""
    while not has_ended(process) and time.monotonic() < deadline:
        time.sleep(0.01)


def _signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Signal a tool that was not reaped yet, and what it started: it leads a session of its own."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
