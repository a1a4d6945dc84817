"""Scenarios in which the Python code of one rank blocks outside communication."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import queue
import re
import signal
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from .trainer import HANG_STEP, Batch, Trainer, announce

if TYPE_CHECKING:
    from torch import Tensor


def job_file(name: str) -> Path:
    """Return the path of a file of this job."""
    return Path(os.environ["HANGTOP_DEMO_DIR"]) / name


class Lock(Trainer):
    """Two threads of rank 1 take two locks in opposite order."""

    def __init__(self) -> None:
        super().__init__()
        self.model_lock = threading.Lock()
        self.stats_lock = threading.Lock()
        self.both_hold = threading.Barrier(2)

    def train_step(self, batch: Batch) -> Tensor:
        """Update the statistics while a thread saves a checkpoint."""
        if self.goes_wrong(rank=1):
            threading.Thread(
                target=self.save_checkpoint, name="checkpoint-writer", daemon=True
            ).start()
            self.update_statistics()
        return super().train_step(batch)

    def update_statistics(self) -> None:
        """Lock the model first, then the statistics."""
        with self.model_lock:
            self.both_hold.wait()
            with self.stats_lock:
                pass

    def save_checkpoint(self) -> None:
        """Lock the statistics first, then the model: the wrong order."""
        with self.stats_lock:
            self.both_hold.wait()
            with self.model_lock:
                pass


class Busy(Trainer):
    """A search on rank 3 that never converges, in pure Python."""

    def train_step(self, batch: Batch) -> Tensor:
        """Tune the learning rate first."""
        if self.goes_wrong(rank=3):
            self.tune_learning_rate()
        return super().train_step(batch)

    def tune_learning_rate(self) -> float:
        """Bisect until the interval is below zero, which never happens."""
        low, high = 0.0, 1.0
        while high - low >= 0.0:
            middle = (low + high) / 2
            low, high = (middle, high) if middle * middle < 0.5 else (low, middle)
        return low


class Regex(Trainer):
    """A pattern with catastrophic backtracking on rank 2: C code that keeps the GIL."""

    def train_step(self, batch: Batch) -> Tensor:
        """Check a line of text with the bad pattern."""
        if self.goes_wrong(rank=2):
            self.parse_log_line("a" * 64 + "!")
        return super().train_step(batch)

    def parse_log_line(self, line: str) -> bool:
        """Match words in a way that needs 2 to the power of 64 attempts."""
        return re.match(r"(a+)+$", line) is not None


class Gil(Trainer):
    """A helper thread of rank 1 sleeps in C without releasing the GIL."""

    def __init__(self) -> None:
        super().__init__()
        self.poll_now = threading.Event()
        self.device_ready = False
        threading.Thread(target=self.poll_device, name="device-poller", daemon=True).start()

    def train_step(self, batch: Batch) -> Tensor:
        """Ask the helper; the main thread never runs Python again."""
        if self.goes_wrong(rank=1):
            self.wait_for_device()
        return super().train_step(batch)

    def wait_for_device(self) -> None:
        """Poll until the helper has an answer."""
        self.poll_now.set()
        while not self.device_ready:
            time.sleep(0.01)

    def poll_device(self) -> None:
        """Call a C function through an interface that holds the GIL."""
        self.poll_now.wait()
        ctypes.PyDLL(None).sleep(1_000_000)
        self.device_ready = True


class Child(Trainer):
    """Rank 2 waits for a program it started."""

    def train_step(self, batch: Batch) -> Tensor:
        """Copy the logs in the middle of training."""
        if self.goes_wrong(rank=2):
            self.upload_logs()
        return super().train_step(batch)

    def upload_logs(self) -> None:
        """Run a program that does not end, and wait for it."""
        subprocess.run(["sleep", "1000000"], check=True)


class Debugger(Trainer):
    """A torch.distributed.breakpoint() left in the code: rank 0 has the prompt, the others wait."""

    def train_step(self, batch: Batch) -> Tensor:
        """Stop at the prompt."""
        self.goes_wrong(rank=0)
        if self.step == HANG_STEP:
            dist.breakpoint(0)
        return super().train_step(batch)


class FileLock(Trainer):
    """Rank 3 waits for a lock file that a process outside the job holds."""

    def train_step(self, batch: Batch) -> Tensor:
        """Refresh the cache, which the lock protects."""
        if self.goes_wrong(rank=3):
            self.refresh_cache()
        return super().train_step(batch)

    def refresh_cache(self) -> None:
        """Take the lock of the cache."""
        with job_file("cache.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)


class Fifo(Trainer):
    """Rank 1 reads a file whose server never answers."""

    def train_step(self, batch: Batch) -> Tensor:
        """Load weights in the middle of training."""
        if self.goes_wrong(rank=1):
            self.load_weights()
        return super().train_step(batch)

    def load_weights(self) -> bytes:
        """Read from a FIFO that is open for writing and stays empty."""
        descriptor = os.open(job_file("weights.bin"), os.O_RDWR)
        return os.read(descriptor, 1 << 20)


class DState(Trainer):
    """Rank 2 sleeps in the kernel where no signal reaches it, as with a dead NFS server."""

    def train_step(self, batch: Batch) -> Tensor:
        """Write the checkpoint."""
        if self.goes_wrong(rank=2):
            self.save_checkpoint()
        return super().train_step(batch)

    def save_checkpoint(self) -> None:
        """Block in uninterruptible sleep.

        A parent of clone(CLONE_VFORK) waits in state D until its child executes a program or ends
        (clone(2)); without CLONE_VM the child has its own memory, so it may stay in Python.
        """
        clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
        flags = 0x4000 | signal.SIGCHLD
        if ctypes.CDLL(None).syscall(clone, flags, 0, 0, 0, 0) == 0:
            signal.pause()


class QueueWait(Trainer):
    """Rank 1 waits for a prefetch thread that has ended."""

    def train_step(self, batch: Batch) -> Tensor:
        """Take a batch from an empty queue."""
        if self.goes_wrong(rank=1):
            self.next_prefetched()
        return super().train_step(batch)

    def next_prefetched(self) -> object:
        """Start a producer that produces nothing, and wait for its output."""
        prefetched: queue.Queue[object] = queue.Queue()
        threading.Thread(target=lambda: None, name="prefetch").start()
        return prefetched.get()


class OutputPipe(Trainer):
    """Rank 0 prints much, and the reader of its output has stopped reading."""

    def train_step(self, batch: Batch) -> Tensor:
        """Report every weight."""
        if self.rank == 0 and self.step == HANG_STEP:
            self.print_weights()
        return super().train_step(batch)

    def print_weights(self) -> None:
        """Fill the pipe, announced before its last page is full."""
        announce()
        for number in range(100_000):
            print(f"step {self.step} weight {number} {0.0:.6f}", flush=True)


class Remote(Trainer):
    """Rank 2 asks a service that accepts the connection and never answers."""

    def train_step(self, batch: Batch) -> Tensor:
        """Report to the tracking service."""
        if self.goes_wrong(rank=2):
            self.report_to_tracker()
        return super().train_step(batch)

    def report_to_tracker(self) -> bytes:
        """Wait for an answer without a time limit."""
        port = job_file("service.port").read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/runs") as answer:
            body: bytes = answer.read()
            return body


SCENARIOS: dict[str, type[Trainer]] = {
    "lock": Lock,
    "busy": Busy,
    "regex": Regex,
    "gil": Gil,
    "child": Child,
    "debugger": Debugger,
    "file-lock": FileLock,
    "fifo": Fifo,
    "dstate": DState,
    "queue": QueueWait,
    "output-pipe": OutputPipe,
    "remote": Remote,
}
