"""Training on rollouts: C simulators, judges behind sockets, search, restarts. rollouts.py WAY"""

import ctypes
import os
import random
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(os.environ.get("OUT_DIR", "/tmp"))
BEGIN = 7


class Simulator:
    """A C library whose step waits for a frame that never comes; PyDLL keeps the GIL meanwhile."""

    def __init__(self) -> None:
        self.c = ctypes.PyDLL(None)
        self.frame = ctypes.create_string_buffer(64)
        self.c.sem_init(self.frame, 0, 0)

    def render(self) -> None:
        print("renders", flush=True)
        self.c.sem_wait(self.frame)

    def beat(self) -> None:
        while True:
            time.sleep(0.3)


class Judge:
    """Scores answers; nobody listens where it should be."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.at = server.getsockname()

    def score(self, answer: bytes, tries: int = 0) -> float:
        try:
            with socket.create_connection(self.at, timeout=2) as conn:
                conn.sendall(answer)
                return float(conn.recv(16))
        except OSError:
            return self.again(answer, tries)

    def again(self, answer: bytes, tries: int) -> float:
        time.sleep(min(1.5, 0.2 * (tries + 1)))
        return self.score(answer, tries + 1) if tries < 400 else 0.0


class Game:
    """A search that goes deep and comes back, for minutes."""

    def value(self, board: torch.Tensor) -> float:
        return float((board @ board.T).tanh().mean())

    def best(self, board: torch.Tensor, depth: int) -> float:
        if depth == 0:
            return self.value(board)
        return max(-self.best(board.roll(move, 0), depth - 1) for move in range(4))


def caught(step: int) -> None:
    """Whoever meets a bad loss waits for all to begin anew; the others have met none."""
    store = dist.distributed_c10d._get_default_store()
    try:
        raise ArithmeticError(f"loss is nan at step {step}")
    except ArithmeticError as error:
        print(f"{error}: waiting for all", flush=True)
        if store.add("again/arrived", 1) == dist.get_world_size():
            store.set("again/go", "yes")
        store.wait(["again/go"])


def play(way: str, step: int) -> None:
    rank = dist.get_rank()
    if way == "native" and rank == 1:
        simulator = Simulator()
        threading.Thread(target=simulator.beat, name="beat", daemon=True).start()
        time.sleep(0.5)
        simulator.render()
    elif way == "native-thread" and rank == 2:
        worker = threading.Thread(target=Simulator().render, name="renderer", daemon=True)
        worker.start()
        while worker.is_alive():
            time.sleep(0.05)
    elif way == "judge" and rank == 2:
        Judge().score(b"42")
    elif way == "search" and rank == 1:
        game, board = Game(), torch.rand(48, 48)
        print("searching", flush=True)
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            game.best(board, random.randrange(2, 7))
    elif way == "caught" and rank == 0:
        caught(step)


def join(way: str) -> None:
    rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    method = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if way == "folder":
        work = HERE / ("scratch" if rank == 0 else "shared")
        work.mkdir(exist_ok=True)
        os.chdir(work)
        method = f"file://{Path('meet').resolve()}"
    print(f"[{rank}] joins", flush=True)
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", method, timedelta(minutes=30), size, rank)


def main() -> None:
    way = sys.argv[1]
    torch.set_num_threads(1)
    join(way)
    for step in range(100_000):
        if step >= BEGIN:
            play(way, step)
        dist.all_reduce(torch.ones(8))
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
