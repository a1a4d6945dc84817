"""Running py-spy, strace and the like: bounded, cancellable, and never left behind.

Every tool dies with the probe, also when the probe is killed: it is started through `setpriv
--pdeathsig` or, where util-linux lacks that, through a few lines of Python that make the same
prctl(2) call. Ending is gentle first, so that a tracer can detach.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Set

_GRACE = 2.0
"""Seconds a tool has to end after SIGTERM before SIGKILL."""
_WRAPPER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0);"
    " os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
)


class Done(NamedTuple):
    """How a tool ended."""

    code: Optional[int]
    out: bytes
    err: bytes
    timed_out: bool = False
    cancelled: bool = False


def clean_environment() -> Dict[str, str]:
    """Return the environment for tools: nothing of Rust's, no locale, no preloads."""
    dropped = ("RUST_", "LD_PRELOAD", "PYTHON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    kept["LC_ALL"] = "C"
    return kept


class Tools:
    """Starts tools and knows which are running."""

    def __init__(self) -> None:
        self._running: Set["subprocess.Popen[bytes]"] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._setpriv = shutil.which("setpriv")
        self._env = clean_environment()

    def start(self, argv: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start ``argv``; raise OSError where that fails or the probe is ending."""
        with self._lock:
            if self._closed:
                raise OSError("the probe is ending")
            process = subprocess.Popen(
                [*self._prefix(), *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def _prefix(self) -> List[str]:
        if self._setpriv:
            return [self._setpriv, "--pdeathsig", "TERM"]
        return [sys.executable, "-I", "-S", "-c", _WRAPPER, str(os.getpid())]

    def pids(self) -> Set[int]:
        """Return the tools that run now."""
        with self._lock:
            return {process.pid for process in self._running}

    def run(self, argv: Sequence[str], seconds: float, cancel: threading.Event) -> Done:
        """Run ``argv`` to its end, at most ``seconds``, or until ``cancel``."""
        process = self.start(argv)
        deadline = time.monotonic() + seconds
        step = 0.2
        while True:
            left = deadline - time.monotonic()
            try:
                out, err = process.communicate(timeout=max(0.001, min(step, left)))
            except subprocess.TimeoutExpired:
                if left > step and not cancel.is_set():
                    continue
                self.end(process)
                return Done(None, b"", b"", not cancel.is_set(), cancel.is_set())
            self.forget(process)
            return Done(process.returncode, out, err)

    def end(self, process: "subprocess.Popen[bytes]", first: int = signal.SIGTERM) -> bool:
        """End a tool: ``first``, then SIGTERM, then SIGKILL; False if it will not go."""
        for number in (first, signal.SIGTERM, signal.SIGKILL):
            if process.poll() is not None:
                break
            process.send_signal(number)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                continue
        gone = process.poll() is not None
        if gone:
            self.forget(process)
        return gone

    def forget(self, process: "subprocess.Popen[bytes]") -> None:
        """Close the pipes of a tool that has ended."""
        with self._lock:
            self._running.discard(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def close(self) -> None:
        """End all tools and start none any more."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for process in running:
            try:
                process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


class Halted(NamedTuple):
    """Which threads of a process were stopped, traced or waiting for a disk."""

    stopped: bool
    busy: bool


def halted(states: Dict[int, str]) -> Halted:
    """Look at thread states: `T` and `t` are stopped, `D` cannot be interrupted."""
    letters = set(states.values())
    return Halted(bool(letters & {"T", "t"}), bool(letters & {"D", "T", "t"}))
