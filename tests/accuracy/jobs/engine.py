"""A server over two ranks without RANK: an engine gives them work by a queue or a pipe each.

stuck: after some requests the engine waits for a lock that nobody gives back.
idle: it waits for requests at a port, and the ranks look for work without blocking.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

WORLD = 2
SPAWN = multiprocessing.get_context("spawn")


def step(number: int) -> None:
    hidden = torch.randn(8, 32) @ torch.randn(32, 32)
    dist.all_reduce(hidden)
    if dist.get_rank() == 0:
        print(f"step {number}", flush=True)


def by_pipe(pipe) -> None:
    while True:
        step(pipe.recv())
        pipe.send("done")


def by_looking(requests) -> None:
    while True:
        try:
            number = requests.get_nowait()
        except queue.Empty:
            time.sleep(0.01)
            continue
        step(number)


def worker(rank: int, port: int, way: str, work) -> None:
    torch.set_num_threads(1)
    store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    globals()[way](work)


def start(way: str, works) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank, work in enumerate(works):
        SPAWN.Process(target=worker, args=(rank, port, way, work), daemon=True).start()


def stuck() -> None:
    pairs = [SPAWN.Pipe() for _ in range(WORLD)]
    start("by_pipe", [theirs for _, theirs in pairs])
    number, cache = 0, threading.Lock()
    while True:
        cache.acquire()  # given back for most requests only
        for ours, _ in pairs:
            ours.send(number)
        for ours, _ in pairs:
            ours.recv()
        number += 1
        if number < 12:
            cache.release()
        time.sleep(0.1)


def idle() -> None:
    works = [SPAWN.Queue() for _ in range(WORLD)]
    start("by_looking", works)
    for number in range(12):
        for work in works:
            work.put(number)
        time.sleep(0.2)
    door = socket.create_server(("127.0.0.1", 0))
    while True:
        caller, _ = door.accept()
        caller.recv(100)
        for work in works:
            work.put(0)
        caller.close()


if __name__ == "__main__":
    {"stuck": stuck, "idle": idle}[sys.argv[1]]()
