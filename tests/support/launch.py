"""Starting processes for tests, and ending all of them: marked by environment, killed by pid."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Self

from support.processes import PATIENCE, with_variable

SUPPORT = Path(__file__).parent
MARK = "HANGTOP_TEST_MARK"


def free_port() -> int:
    """Return a TCP port nobody has, and that nobody is given who asks for any."""
    while True:
        port = random.randrange(10000, 29000)  # /proc/sys/net/ipv4/ip_local_port_range is above
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Started:
    """A process tree started for a test."""

    def __init__(
        self, *argv: str, env: dict[str, str] | None = None, output: Path = Path(os.devnull)
    ) -> None:
        self.mark = uuid.uuid4().hex
        full = {**os.environ, MARK: self.mark, "OMP_NUM_THREADS": "1", **(env or {})}
        with output.open("ab", buffering=0) as file:
            self.process = subprocess.Popen(
                argv, env=full, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def pids(self) -> list[int]:
        """Return every live process that carries the mark, also on nodes that are namespaces."""
        return with_variable(MARK, self.mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + PATIENCE
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self.pid in pids:
                self.process.wait(PATIENCE)
            time.sleep(0.05)
        self.process.wait(PATIENCE)
        assert not self.pids()


def torchrun(
    *script: str, nproc: int = 4, env: dict[str, str] | None = None, file: str = "gloo_job.py"
) -> Started:
    """Start `torchrun` with a ``file`` of this directory, and ``script`` for its arguments."""
    return Started(
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={nproc}",
        f"--master-port={free_port()}",
        str(SUPPORT / file),
        *script,
        env=env,
    )
