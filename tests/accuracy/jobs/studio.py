"""A trainer with callbacks, in the manner of the big frameworks.

python studio.py CALLBACK [--culprit R] [--spawn N]
"""

import argparse
import fcntl
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as tmp
from torch.utils.file_baton import FileBaton

HERE = Path(os.environ.get("OUT_DIR", "/tmp"))


class Callback:
    """Does nothing."""

    def __init__(self, rank, culprit):
        self.rank, self.culprit = rank, culprit
        self.mine = rank == culprit

    def on_start(self, trainer): ...

    def on_step(self, trainer): ...

    def on_end(self, trainer): ...


def play(episodes, steps):
    for number in range(steps):
        episodes.put(number)
        time.sleep(0.02)
    episodes.close()
    episodes.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)


class Actors(Callback):
    """Episodes from a process; that of one rank is killed."""

    def on_start(self, trainer):
        fork = multiprocessing.get_context("fork")
        self.episodes = fork.Queue()
        steps = 7 if self.mine else 100000
        fork.Process(target=play, args=(self.episodes, steps), daemon=True).start()

    def on_step(self, trainer):
        self.episodes.get()


class Baton(Callback):
    """One builds a kernel, the others wait for its baton; a build of yesterday was killed."""

    def on_step(self, trainer):
        if self.mine and trainer.step == 7:
            (HERE / "build.lock").touch()
            baton = FileBaton(str(HERE / "build.lock"))
            if not baton.try_acquire():
                baton.wait()


class Exclusive(Callback):
    """One rank at a time fills the cache, and then all meet; the meeting is inside the lock."""

    def on_step(self, trainer):
        if trainer.step != 7:
            return
        with open(HERE / "cache.lock", "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            (HERE / "cache").write_text("filled")
            dist.barrier()


def save(number):
    with open(HERE / f"async{number}.pt", "wb") as file:
        for _ in range(600):
            file.write(os.urandom(65536))
            time.sleep(0.1)


class Background(Callback):
    """Not hung: checkpoints are written by a thread while training goes on."""

    thread = None

    def on_step(self, trainer):
        if self.rank == 0 and trainer.step % 50 == 7:
            if self.thread is not None:
                self.thread.join()
            self.thread = threading.Thread(target=save, args=(trainer.step,))
            self.thread.start()


class Judge(Callback):
    """Not hung: the learner polls for episodes, which actors need long for."""

    def on_start(self, trainer):
        fork = multiprocessing.get_context("spawn")
        self.episodes = fork.Queue()
        self.actor = fork.Process(target=slow_play, args=(self.episodes,), daemon=True)
        self.actor.start()

    def on_step(self, trainer):
        while True:
            try:
                return self.episodes.get(timeout=2)
            except queue.Empty:
                continue


def slow_play(episodes):
    number = 0
    while True:
        total, until = 0, time.monotonic() + (0.1 if number < 8 else 17)
        while time.monotonic() < until:
            total += sum(range(10000))
        episodes.put(total)
        number += 1


class Trainer:
    """Runs callbacks around steps."""

    def __init__(self, callback, steps):
        self.callback, self.steps, self.step = callback, steps, 0
        self.weights = torch.zeros(128, 128)

    def training_step(self):
        gradient = torch.tanh(self.weights + torch.randn(128, 128))
        dist.all_reduce(gradient)
        self.weights -= 0.01 * gradient
        time.sleep(0.15)

    def fit(self):
        self.callback.on_start(self)
        for self.step in range(self.steps):
            self.training_step()
            if dist.get_rank() == 0:
                print(f"step {self.step}", file=sys.stderr, flush=True)
            self.callback.on_step(self)
        self.callback.on_end(self)


def main(rank=None, options=None):
    if rank is not None:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(options.spawn)
    dist.init_process_group("gloo")
    callbacks = {cls.__name__.lower(): cls for cls in Callback.__subclasses__()}
    callback = callbacks[options.callback](dist.get_rank(), options.culprit)
    Trainer(callback, 1000000).fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("callback")
    parser.add_argument("--culprit", type=int, default=1)
    parser.add_argument("--spawn", type=int, default=0)
    options = parser.parse_args()
    if options.spawn:
        tmp.spawn(main, args=(options,), nprocs=options.spawn)
    else:
        main(None, options)
