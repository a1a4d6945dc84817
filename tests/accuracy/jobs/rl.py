"""Actors play, a learner on every rank trains; by torchrun, or its own launcher (--spawn)."""

import argparse
import collections
import ctypes
import multiprocessing
import os
import random
import re
import socket
import threading
import time
from queue import Queue

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--env", default="toy")
parser.add_argument("--spawn", type=int, default=0)
options = parser.parse_args()


class Environment:
    """Gives observations; some kinds have a habit of their own."""

    def __init__(self, kind, rank):
        self.kind, self.rank, self.turn = kind, rank, 0
        if kind == "server" and rank == 2:
            listener = socket.create_server(("127.0.0.1", 0))
            self.keep = listener
            self.line = socket.create_connection(listener.getsockname())

    def step(self, action):
        self.turn += 1
        if self.turn == 40:
            if self.kind == "broken" and self.rank == 0:
                raise RuntimeError("simulator: joint limit violated")
            if self.kind == "native" and self.rank == 2:
                print("recompiling the physics of this scene", flush=True)
                ctypes.PyDLL(None).usleep(ctypes.c_uint(4_000_000_000))
            if self.kind == "server" and self.rank == 2:
                self.line.sendall(b"STEP 1\n")
                self.line.recv(4096)
        return [random.random() for _ in range(4)], random.random()


def reward_of(text):
    """Score an answer by its form."""
    return 1.0 if re.match(r"^(\w+\s?)*$", text) else 0.0


class Replay:
    def __init__(self):
        self.rows, self.lock = collections.deque(maxlen=1000), threading.Lock()


class Statistics:
    def __init__(self):
        self.mean, self.lock = 0.0, threading.Lock()


def actor(environment, out):
    while True:
        out.put(environment.step(0))
        time.sleep(0.005)


def averager(replay, stats):
    """Keep the moving average up to date."""
    while True:
        with stats.lock:
            time.sleep(0.01)
            with replay.lock:
                stats.mean = sum(row[1] for row in replay.rows) / max(1, len(replay.rows))
        time.sleep(0.01)


def score_in_child(lock):
    with lock:
        os._exit(0)


def learner(rank):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    experience = Queue()
    environment = Environment(options.env, rank)
    in_thread = options.env in ("broken", "native")
    if in_thread:
        threading.Thread(target=actor, args=(environment, experience), daemon=True).start()
    replay, stats = Replay(), Statistics()
    policy = torch.nn.Linear(4, 1)
    target = torch.nn.Linear(4, 1)
    for update in range(10**9):
        for _ in range(4):
            row = experience.get() if in_thread else environment.step(0)
            with replay.lock:
                replay.rows.append(row)
        if update == 10 and options.env == "ema" and rank == 1:
            threading.Thread(target=averager, args=(replay, stats), daemon=True).start()
            while True:
                with replay.lock:
                    time.sleep(0.01)
                    with stats.lock:
                        [r[1] - stats.mean for r in replay.rows]
        if update == 10 and options.env == "judge" and rank == 1:
            reward_of("the answer to this is " + "a" * 60 + "!")
        if update == 10 and options.env == "fork" and rank == 1:
            fork_while_locked()
        batch = torch.tensor([r[0] for r in list(replay.rows)[-4:]])
        policy(batch).mean().backward()
        for weight in policy.parameters():
            dist.all_reduce(weight.grad)
        with torch.no_grad():
            for old, new in zip(target.parameters(), policy.parameters()):
                old.lerp_(new, 0.01)
        policy.zero_grad()
        if rank == 0:
            print(f"update {update}", flush=True)
        time.sleep(0.02)


def fork_while_locked():
    """Score in a forked child, while a thread of ours has the lock of the results."""
    lock = threading.Lock()

    def writer():
        with lock:
            time.sleep(3)

    threading.Thread(target=writer, daemon=True).start()
    time.sleep(0.2)
    child = multiprocessing.get_context("fork").Process(target=score_in_child, args=(lock,))
    child.start()
    child.join()


def spawned(rank, world):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    learner(rank)


if __name__ == "__main__":
    if options.spawn:
        import torch.multiprocessing as mp

        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        mp.spawn(spawned, args=(options.spawn,), nprocs=options.spawn)
    else:
        learner(int(os.environ.get("RANK", 0)))
