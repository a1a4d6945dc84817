"""Reports in the forms of NCCL's RAS, and a double of the rank that gives them.

No GPU is needed, and none is here: the double is a real process that has a file of NCCL's name
mapped, listens where it would, but what it says is made here,
after src/ras/client_support.cc of NCCL 2.24 to 2.30.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.launch import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SERVER = Path(__file__).parent / "ras_server.py"
OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(
    number: int,
    pid: int,
    host: str = "10.0.0.1",
    gpu: int | None = None,
    counts: Mapping[str, int] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A rank that answered."""
    return {
        **_who(number, pid, host, gpu),
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
            **status,
        },
        "collective_counts": {**dict.fromkeys(OPS, 0), **(counts or {})},
    }


def missing(
    number: int, pid: int, host: str = "10.0.0.1", *, dead: bool = False, unresponsive: bool = True
) -> dict[str, Any]:
    """A rank that did not."""
    status = {"unresponsive": unresponsive, "considered_dead": dead}
    return {**_who(number, pid, host, None), "status": status}


def _who(number: int, pid: int, host: str, gpu: int | None) -> dict[str, Any]:
    device = number % 8 if gpu is None else gpu
    return {"rank": number, "host": host, "pid": pid, "cuda_dev": device, "nvml_dev": device}


def document(
    *communicators: tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]],
    version: str = "2.29.7",
    size: int | None = None,
    timeouts: int = 0,
) -> str:
    """JSON as NCCL writes it; each communicator is the ranks that answered, and the others."""
    found = [
        {
            "hash": f"0xc0ffee{n:x}",
            "secondary_hash": "0x1:0x2",
            "size": size or len(ranks) + len(lost),
            "ranks_count": len(ranks),
            "missing_ranks_count": len(lost),
            "ranks": list(ranks),
            "missing_ranks": list(lost),
        }
        for n, (ranks, lost) in enumerate(communicators)
    ]
    whole = {
        "nccl_version": version,
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 12080,
        "timestamp": "2026-01-02 03:04:05",
        "communicators_count": len(found),
        "communicators": found,
        "ras": {"collection_time_sec": 0.25, "timeouts_count": timeouts},
    }
    return json.dumps(whole, indent=2) + "\n"


def without_comma(text: str) -> str:
    """The same as 2.28.9 writes it: no comma before the status of a missing rank."""
    head, found, tail = text.partition('"missing_ranks": [')
    lines = tail.splitlines(keepends=True)
    for at, line in enumerate(lines[1:], 1):
        if '"status"' in line and '"nvml_dev"' in lines[at - 1]:
            lines[at - 1] = lines[at - 1].replace(",\n", "\n")
    return head + found + "".join(lines)


SUMMARY = """NCCL version {version} compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.12s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
{rows}
Errors
======

{errors}Warnings
========

{warnings}"""


def text(rows: str, errors: str = "", warnings: str = "", version: str = "2.27.5") -> str:
    """A report for people."""
    return SUMMARY.format(version=version, rows=rows, errors=errors, warnings=warnings)


class Double:
    """A rank whose RAS answers."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, answer: Path) -> None:
        self.pid, self._log, self._answer = process.pid, log, answer
        self.process = process

    @property
    def asked(self) -> list[str]:
        """The questions it got."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    def say(self, answer: str) -> None:
        """What it answers from now on."""
        self._answer.write_text(answer)


@contextmanager
def double(
    folder: Path,
    answer: str = "",
    *,
    library: str = "libnccl.so.2.29.7",
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    **told: Any,
) -> Iterator[Double]:
    """Run a double; `format` is what it says to JSON, `times` how often it says its answer."""
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    (folder / library).write_bytes(b"x" * 4096)
    (folder / "answer").write_text(answer)
    asked = {
        "library": str(folder / library),
        "port": port,
        "answer": str(folder / "answer"),
        "log": str(folder / "log"),
        **told,
    }
    process = subprocess.Popen(
        [*prefix, sys.executable, str(SERVER), json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}", **(env or {})},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield Double(process, folder / "log", folder / "answer")
    finally:
        process.kill()
        process.communicate()
