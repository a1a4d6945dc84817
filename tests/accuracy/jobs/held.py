"""Ranks prepare one after the other under a lock, then train; rank 0 saves with retries.

held.py lock: rank 1 has a file locked, and its server is silent. held.py guard: it has made a lock
file, and its program does not end. held.py disk: the disk that rank 0 saves to is full.
"""

import fcntl
import functools
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(os.environ["OUT_DIR"])
PLACE = Path(os.environ.get("PLACE", HERE))


class Guard:
    """A file that only one process can make."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        while True:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                time.sleep(0.3)
            else:
                return

    def __exit__(self, *_):
        self.path.unlink()


def ask_for_vocabulary():
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as asked:
        asked.sendall(b"vocabulary")
        return asked.recv(10)


def prepare_lock(rank):
    with (HERE / "index.lck").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print(f"rank {rank} prepares", flush=True)
        ask_for_vocabulary()


def prepare_guard(rank):
    with Guard(HERE / "vocabulary.guard"):
        print(f"rank {rank} prepares", flush=True)
        subprocess.run(["sleep", "100000"], check=True)


def retry(function):
    @functools.wraps(function)
    def wrapped(*args):
        for attempt in range(1000):
            try:
                return function(*args)
            except (OSError, RuntimeError) as error:
                name = function.__name__
                print(f"attempt {attempt} of {name}: {type(error).__name__}", flush=True)
                time.sleep(4)
        raise TimeoutError(function.__name__)

    return wrapped


@retry
def save(state, path):
    torch.save(state, path)


def train(rank):
    events = (HERE / f"events.{rank}").open("w")
    weight = torch.zeros(1 << 19)
    for step in range(100000):
        dist.all_reduce(weight)
        events.write(f"{step}\n")
        if rank == 0 and step % 5 == 4:
            save({"weight": weight, "step": step}, PLACE / "last.pt")


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    dist.barrier()
    me = dist.get_rank()
    if sys.argv[1] != "disk":
        if me != 1:
            time.sleep(1.5)
        {"lock": prepare_lock, "guard": prepare_guard}[sys.argv[1]](me)
    train(me)
