"""Checkpoints are saved by a thread, and the next one waits for it: savers.py silent|full|locked.

The store of rank 1 never answers, reads no more, or the lock of a manifest is another program's.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

MODE = sys.argv[1]
OUT = Path(os.environ["OUT_DIR"])
STORE = """
import fcntl, os, socket, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
lock = open(sys.argv[1], "w"); fcntl.flock(lock, fcntl.LOCK_EX)
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
print(server.getsockname()[1], flush=True)
kept = []
while True:
    link, _ = server.accept(); kept.append(link)
"""


class Saver:
    """Saves in the background, one checkpoint at a time."""

    def __init__(self) -> None:
        lock = str(OUT / "manifest.lock")
        command = [sys.executable, "-c", STORE, lock]
        store = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # it ends with this process
            stdout=subprocess.PIPE,
            env={},
            start_new_session=True,
            text=True,
        )
        assert store.stdout is not None
        self.lock, self.port = lock, int(store.stdout.readline())
        self.store = store
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="saver")
        self.last: Future[bytes] | None = None

    def put(self, data: bytes) -> bytes:
        if MODE == "locked":
            with open(self.lock, "w") as manifest:
                fcntl.flock(manifest, fcntl.LOCK_EX)
        with socket.create_connection(("127.0.0.1", self.port), timeout=3600) as link:
            if MODE == "full":
                link.sendall(data)
            return link.recv(64)

    def save(self) -> None:
        if self.last is not None:
            self.last.result()
        self.last = self.pool.submit(self.put, bytes(32_000_000))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saver = Saver() if rank == 1 else None
    for step in range(100):
        dist.all_reduce(torch.ones(8))
        if rank == 0:
            print("step", step, flush=True)
        if saver is not None and step in (4, 9):
            saver.save()
        time.sleep(0.05)


main()
