"""A gloo job whose rank 1 the kernel ends, or refuses something, while others wait; run by tests.

kernel_job.py LAUNCH HOW: starts 3 ranks, waits for each, and does not end the others when one ends.
HOW is `segfault`, `abort`, `memory CGROUP` (is in that cgroup, and goes over its limit),
`core DIR` (crashes with DIR as its directory and no limit on cores), `disk DIR` (writes to DIR
until it has succeeded), `limited DIR` (so, and none of its files may become large) or
`read MEMBERS FILE` (goes into the cgroup of which MEMBERS is the list, and reads FILE from disk).
It happens once there is the file that DYING_GATE names, in the environment.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANKS = 3


def launch(arguments: list[str]) -> None:
    ranks = []
    for rank in range(RANKS):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
        env = {**os.environ, **{name: str(value) for name, value in told.items()}}
        ranks.append(subprocess.Popen([sys.executable, __file__, *arguments], env=env))
    for one in ranks:
        one.wait()


def die(how: str, where: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "core":
        os.chdir(where)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        ctypes.string_at(0)
    elif how == "memory":
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)))


def load(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 18):
            pass


def save(where: str) -> None:
    while True:
        try:
            with Path(where, "checkpoint.pt").open("ab") as file:
                file.write(bytes(4 << 20))
                return
        except OSError:
            time.sleep(0.5)


def train(how: str, where: str = "", file: str = "") -> None:
    if how == "memory" and os.environ["RANK"] == "1":
        Path(where, "cgroup.procs").write_text(str(os.getpid()))
    import torch
    import torch.distributed as dist

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0)) if how != "core" else None
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        wait_for_gate(Path(os.environ["DYING_GATE"]))
        if how == "limited":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        if how in ("disk", "limited"):
            os.chdir(where)
            save(where)
        if how == "read":
            Path(where).write_text(str(os.getpid()))
            load(file)
        die(how, where)
    wait_for_rank_1(dist.distributed_c10d._get_default_store())


def wait_for_gate(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.05)


def wait_for_rank_1(store: Any) -> None:
    """In a collective of gloo they would notice, and end."""
    store.get("what rank 1 found")


if __name__ == "__main__":
    if sys.argv[1] == "LAUNCH":
        launch(sys.argv[2:])
    else:
        train(*sys.argv[1:])
