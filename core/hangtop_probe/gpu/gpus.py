"""GPUs of this node: asks NVML through a child that may be left behind, and keeps what it said.

The child (`nvmlread.py`) is kept alive and writes as it reads. Where nothing came for a while it
hangs, at a GPU that it has named: it is killed, and another one reads the GPUs that are left. One
that cannot even be killed (state D in the driver) is left, and said so; after some of those nothing
is asked any more.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..proc import procfs
from ..wire import child, pieces
from . import nics, pynvml_path

if TYPE_CHECKING:
    from ..wire.tools import Tools

    Fields = Dict[str, Any]

READER = "hangtop_probe/gpu/nvmlread.py"
INTERVAL = 2.0
"""Seconds between two readings."""
SILENCE = 10.0
"""Seconds without a line after which the child hangs; it writes one before each GPU."""
MAX_LEFT = 3
"""Children that may be left behind in state D before nothing is asked any more."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds before a child that ended is started again, and at most, doubling."""
MAX_LINE = 1 << 20
"""Bytes that are kept without an end of line: its own lines are shorter, libraries print others."""
MAX_XIDS = 32
MAX_GPUS = 64


def driver_loaded() -> bool:
    """Whether the kernel has NVIDIA's driver."""
    return os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl")


def expected() -> bool:
    """Whether asking makes sense: a driver, or its library where the loader looks."""
    return driver_loaded() or any(map(os.path.exists, pieces.nvml_places()))


class Gpus:
    """What is known of the GPUs. `start` begins to read; all else may be called any time."""

    def __init__(self, tools: Tools, interval: float = INTERVAL) -> None:
        self.about: Fields = {}
        """Driver, CUDA version, number of GPUs; or why they cannot be read."""
        self.gpus: Dict[int, Fields] = {}
        self.left: List[int] = []
        """Children that could not be ended."""
        self._tools, self._interval = tools, interval
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._on: Optional[int] = None
        self._pause = 0.0
        """Seconds for which the child has said that it sleeps."""
        self._dead: Dict[int, str] = {}
        """GPUs at which a child hung."""
        self._done = False

    def start(self) -> None:
        """Begin to read, once, where there may be GPUs."""
        if self._thread is not None or not expected():
            return
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; `Tools.close` ends the child."""
        self._ending.set()

    def snapshot(self) -> Dict[int, Fields]:
        """Return what is known of every GPU, to be changed by the caller."""
        with self._lock:
            return {index: dict(fields) for index, fields in self.gpus.items()}

    def once(self, cancel: threading.Event) -> Fields:
        """Ask once; return ``driver`` and ``gpus``, or ``error``, or ``missing``.

        ``loaded`` says whether the kernel has the driver: an error without it means nothing.
        """
        told: Fields
        try:
            done = self._tools.run(command(0.0), SILENCE, cancel)
            if done.timed_out:
                told = {"error": "NVML gave no answer in %g s" % SILENCE}
            else:
                for line in done.out[: 1 << 20].splitlines():
                    self._take(line)
                told = dict(self.about)
                if not told:
                    last = procfs.text(done.err[-4096:]).strip().rpartition("\n")[2][:200]
                    told = {"error": "NVML ended with %s: %s" % (done.code, last)}
        except OSError as error:
            told = {"error": "NVML could not be asked: %s" % str(error)[:200]}
        bad = [index for index, one in sorted(self.gpus.items()) if one.get("state") != "ok"]
        if bad:
            first = self.gpus[bad[0]]
            told["error"] = "GPU %s: %s" % (", ".join(map(str, bad)), first.get("error"))
        return dict(told, loaded=driver_loaded())

    # The child, kept alive

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                self._serve()
            except OSError as error:
                self._fail("NVML could not be asked: %s" % str(error)[:200])
            if self._done or len(self.left) >= MAX_LEFT:
                return
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else pause
            self._ending.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _serve(self) -> None:
        """Start one child and take what it says until it ends or hangs."""
        self._on, self._pause = None, 0.0
        process = self._tools.start(
            command(self._interval, sorted(self._dead)), stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None  # noqa: S101  # it was opened as a pipe
        rest, heard = b"", time.monotonic()
        while not self._ending.is_set():
            ready, _, _ = select.select([process.stdout], [], [], min(0.5, SILENCE / 4))
            if ready:
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    break
                heard = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE:
                    rest = b""
                for line in lines:
                    self._take(line)
            elif time.monotonic() - heard > SILENCE + self._pause:
                self._hangs(process)
                return
        self._tools.end(process)
        if not self._done and not self._ending.is_set():
            self._fail("the process that asks NVML ended with %s" % process.returncode)

    def _hangs(self, process: "subprocess.Popen[bytes]") -> None:
        what = "GPU %d" % self._on if self._on is not None else "the driver"
        text = "NVML gave no answer for %g s, asked for %s" % (SILENCE, what)
        if not self._tools.end(process):
            self.left.append(process.pid)
            text += "; process %d cannot be killed and is left in the driver" % process.pid
        with self._lock:
            if self._on is not None:
                self._dead[self._on] = text
                known = self.gpus.setdefault(self._on, {})
                known.update(state="silent", error=text)
            if len(self.left) >= MAX_LEFT:
                text += "; after %d of those it is not asked any more" % MAX_LEFT
            if self._on is None or len(self.left) >= MAX_LEFT:
                self.about = dict(self.about, error=text)
                for fields in self.gpus.values():
                    fields.update(state="silent", error=text)

    def _fail(self, text: str) -> None:
        with self._lock:
            self.about = dict(self.about, error=self.about.get("error") or text)

    def _take(self, line: bytes) -> None:
        """Take in one line of the child; libraries in it may print others between."""
        if not line.startswith(b"{"):
            return  # of a library: to try each as JSON costs a hundred times as much
        try:
            said = json.loads(line)
            if isinstance(said, dict):
                self._learn(said)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return

    def _learn(self, said: Fields) -> None:
        with self._lock:
            if "node" in said:
                self.about = dict(said["node"], error=None)
            elif "missing" in said or "error" in said:
                # Without library or driver there is nothing to come back for.
                self._done = "missing" in said or not driver_loaded()
                self.about = dict(self.about, **said)
            elif "on" in said:
                self._on, self._pause = said["on"], 0.0
            elif "pause" in said:
                self._pause = said["pause"]
            elif "xid" in said:
                self._note_xid(said)
            elif "fields" in said and said["gpu"] in range(MAX_GPUS):
                fields = dict(said["fields"], at=round(time.time(), 1))
                if fields.get("bus_id"):
                    fields["numa"] = nics.numa("/sys/bus/pci/devices/%s" % fields["bus_id"])
                for part in [fields, *(fields.get("mig_devices") or ())]:
                    if part.get("processes") is not None:
                        part["processes"] = [_process(*one) for one in part["processes"]]
                self.gpus.setdefault(said["gpu"], {}).update(fields)

    def _note_xid(self, said: Fields) -> None:
        if said["gpu"] in range(MAX_GPUS):
            known = self.gpus.setdefault(said["gpu"], {})
            xids = [*known.get("xids", ()), [said["xid"], round(said["at"], 1)]]
            known["xids"] = xids[-MAX_XIDS:]


def command(seconds: float, left_out: Optional[List[int]] = None) -> List[str]:
    """Return how the child is started: by its file, or by its text where that is in memory."""
    options = [pynvml_path.find().entry or "", "%g" % seconds, *map(str, left_out or ())]
    python = [sys.executable, "-I", "-S", "-u"]
    if child.in_memory() is not None:
        return [*python, "-c", child.source(READER).decode("utf-8"), *options]
    return [*python, os.path.join(child.folder(), READER), *options]


def _process(pid: int, memory: Optional[int]) -> Fields:
    """What a process on a GPU is called and whose it is; both None where it cannot be seen."""
    stat = procfs.read_stat(pid)
    return {"pid": pid, "memory": memory, "comm": stat.comm if stat is not None else None}
