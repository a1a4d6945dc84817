"""RL with verifiable rewards: a pool of processes runs the programs that the policy wrote."""

import multiprocessing
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
ITERATIONS = 500


def run_program(source: str) -> float:
    """Run one answer; the node has little memory, and the kernel ends whoever takes most."""
    time.sleep(0.05)
    if "bytearray(1 << 40)" in source:
        os.kill(os.getpid(), signal.SIGKILL)
    scope: dict = {}
    exec(source, scope)
    return float(scope["answer"] == 4)


class Verifier:
    """Scores answers in processes of their own, so that they can do no harm."""

    def __init__(self, processes: int = 2) -> None:
        self.pool = multiprocessing.get_context("fork").Pool(processes)

    def score(self, programs: list[str]) -> torch.Tensor:
        return torch.tensor(self.pool.map(run_program, programs, chunksize=1))


class Policy:
    def __init__(self, rank: int) -> None:
        self.rank, self.theta = rank, torch.zeros(3)

    def sample(self, iteration: int) -> list[str]:
        programs = ["answer = 2 + 2", "answer = 2 * 3", "answer = sum([1, 3])"]
        if self.rank == 1 and iteration > 6:
            programs[1] = "answer = len(bytearray(1 << 40))"
        return programs

    def update(self, rewards: torch.Tensor) -> None:
        gradient = rewards - rewards.mean()
        dist.all_reduce(gradient)
        self.theta += 0.1 * gradient / WORLD


def train(rank: int) -> None:
    verifier = Verifier()  # before any thread is started
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(minutes=30))
    policy = Policy(rank)
    for iteration in range(1, ITERATIONS):
        programs = policy.sample(iteration)
        time.sleep(0.2)
        rewards = verifier.score(programs)
        policy.update(rewards)
        if rank == 0:
            print(
                f"step {iteration} reward {rewards.mean():.2f} theta {policy.theta.tolist()}",
                flush=True,
            )


if __name__ == "__main__":
    mp.spawn(train, nprocs=WORLD)
