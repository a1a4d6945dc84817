"""A small head for tests: starts the real probe over pipes and speaks its protocol."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import hangtop_probe
from hangtop_probe.wire import wire
from support.processes import PATIENCE

if TYPE_CHECKING:
    from support.launch import Started

CORE = Path(hangtop_probe.__file__).parents[1]
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from hangtop_probe import __main__; from hangtop_probe.wire import server;"
    f" server.SILENCE = {2 * PATIENCE}; sys.exit(__main__.main(sys.argv[1:]))"
)
"""A real head says something twice a minute, else the probe ends: a test may wait for a job."""


class ProbeClient:
    """One connection to one probe process."""

    def __init__(self, python: str = sys.executable, prefix: tuple[str, ...] = ()) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, python, "-I", "-c", BOOT, str(CORE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "RUST_BACKTRACE": "1"},
        )
        self.reader = wire.Reader()
        self.messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.pending: list[dict[str, Any]] = []
        self.next_id = 1
        self.hello_after = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            message = self.reader.feed(line.rstrip(b"\n"))
            if message is not None:
                if "hello" in message:
                    self.hello_after = time.monotonic() - self.started
                self.messages.put(message)
        self.messages.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, **message: Any) -> int:
        """Send a request; return its id."""
        if "id" not in message:
            message["id"] = self.next_id
            self.next_id += 1
        assert self.process.stdin
        for line in wire.encode(message):
            self.process.stdin.write(line)
        self.process.stdin.flush()
        return int(message["id"])

    def receive(self, ident: int, timeout: float = PATIENCE) -> dict[str, Any]:
        """Return the next message for request ``ident``."""
        for index, message in enumerate(self.pending):
            if message["id"] == ident:
                return self.pending.pop(index)
        deadline = time.monotonic() + timeout
        while True:
            message = self.messages.get(timeout=max(0.01, deadline - time.monotonic()))
            assert message is not None, "the probe ended"
            if message["id"] == ident:
                return message
            self.pending.append(message)

    def hello(self) -> dict[str, Any]:
        """Return what the probe said first."""
        hello: dict[str, Any] = self.receive(0)["hello"]
        return hello

    def ask(self, timeout: float = PATIENCE, **message: Any) -> list[dict[str, Any]]:
        """Send a request and return all its messages, the last of which is its end."""
        ident = self.send(**message)
        answers = []
        while True:
            answers.append(self.receive(ident, timeout))
            if "data" not in answers[-1]:
                return answers
            self.send(op="credit", id=ident, n=1)

    def pieces(self, **message: Any) -> list[dict[str, Any]]:
        """Send a request that must succeed and return its pieces."""
        *pieces, last = self.ask(**message)
        assert "end" in last, last
        return [piece["data"] for piece in pieces]

    def close(self) -> int:
        """End the connection as a head that goes does; return the exit status."""
        assert self.process.stdin
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self._thread.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        return code


class Table:
    """The process table as the pieces of a watch give it."""

    def __init__(self, client: ProbeClient, **options: Any) -> None:
        self.client = client
        self.id = client.send(op="watch", **{"interval": 0.3, **options})
        self.processes: dict[int, dict[str, Any]] = {}
        self.strings: dict[int, str] = {}
        self.node: dict[str, Any] = {}
        self.gone: dict[int, dict[str, Any]] = {}
        self.at = 0.0
        self._metered: dict[int, float] = {}

    def update(self) -> dict[str, Any]:
        """Take in the next piece."""
        message = self.client.receive(self.id)
        assert "data" in message, message
        self.client.send(op="credit", id=self.id, n=1)
        piece: dict[str, Any] = message["data"]
        self.at = piece["at"]
        self.strings.update({int(k): v for k, v in piece.get("strings", {}).items()})
        self.node.update(piece.get("node", {}))
        for pid, last in piece.get("gone", {}).items():
            self.gone[int(pid)] = {**self.processes.pop(int(pid), {}), **last}
        for pid, fields in piece.get("set", {}).items():
            self.processes[int(pid)] = {**self.processes.get(int(pid), {}), **fields}
            if "meters" in fields:
                self._metered[int(pid)] = self.at
        return piece

    def rested(self, pid: int) -> float:
        """Seconds since the main thread of a process ran, as far as is known.

        That time has passed is never told by itself.
        """
        ago = self.processes[pid]["meters"]["main_last_ran_s"]
        return 0.0 if ago is None else float(ago) + self.at - self._metered[pid]

    def until(self, condition: Any, timeout: float = PATIENCE) -> None:
        """Take in pieces until ``condition(self)`` holds."""
        deadline = time.monotonic() + timeout
        while not condition(self):
            assert time.monotonic() < deadline, self.brief()
            self.update()

    def role(self, role: str) -> list[dict[str, Any]]:
        """Return the processes with this role."""
        return [p for p in self.processes.values() if p["role"] == role]

    def mine(self, job: Started) -> dict[int | None, dict[str, Any]]:
        """Return the ranks of one job: other jobs may run on this machine too."""
        pids = set(job.pids())
        return {rank["rank"]: rank for rank in self.role("rank") if rank["pid"] in pids}

    def hangs(self, job: Started, count: int) -> bool:
        """Whether all ranks of a job are there and have been quiet for a while."""
        ranks = self.mine(job)
        return set(ranks) == set(range(count)) and all(
            len(rank["threads"]) >= 3 and self.rested(rank["pid"]) > 1 for rank in ranks.values()
        )

    def threads(self, pid: int) -> list[dict[str, Any]]:
        """Return a process's threads with texts in place of numbers."""
        names = ("tid", "name", "state", "wchan", "syscall", "fd", "futex")
        rows = []
        for row in self.processes[pid]["threads"]:
            values = dict(zip(names, row, strict=True))
            for name in ("name", "state", "wchan", "syscall", "futex"):
                values[name] = None if values[name] is None else self.strings[values[name]]
            rows.append(values)
        return rows

    def brief(self) -> list[str]:
        """Return one line per process, for assertion messages."""
        return [f"{p['pid']} {p['label']} {p['comm']}" for p in self.processes.values()]
