"""Training whose shards are dealt out over the store that also builds the process group.

dynamic.py client: rank 0 has the store.  dynamic.py server: a process beside rank 0 has it.
"""

import os
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(minutes=30)
ADDRESS = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def serve() -> None:
    """Have the store, and nothing else."""
    store = dist.TCPStore(*ADDRESS, None, True, timeout=PATIENCE, wait_for_workers=False)
    print("store: listening", flush=True)
    while True:
        time.sleep(5)
        store.set("alive", str(time.time()))


def start_server() -> subprocess.Popen:
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), "serve"], env=plain)


def connect(host: bool = False) -> dist.TCPStore:
    """A connection to the store, or the store itself."""
    return dist.TCPStore(*ADDRESS, None, host, timeout=PATIENCE, wait_for_workers=False)


class Dealer:
    """Deals shards; connects again where the store was lost, as after a restart of it."""

    def __init__(self, store: dist.TCPStore, rank: int):
        self.store, self.rank = store, rank

    def next_shard(self) -> int:
        while True:
            try:
                return self.store.add("shards/cursor", 1)
            except RuntimeError as error:
                text = str(error).splitlines()[0][:90]
                print(f"[rank {self.rank}] store lost ({text}), connecting again", flush=True)
                self.store = connect()


def train(rank: int, world: int, store: dist.TCPStore) -> None:
    group = dist.PrefixStore("world", store)
    dist.init_process_group("gloo", store=group, rank=rank, world_size=world, timeout=PATIENCE)
    dealer = Dealer(store, rank)
    weights = torch.zeros(64, 64)
    for step in range(1_000_000):
        shard = dealer.next_shard()
        torch.manual_seed(shard)
        gradient = torch.randn_like(weights) * 0.01
        time.sleep(0.3)
        dist.all_reduce(gradient)
        weights -= gradient / world
        if rank == 0:
            print(f"step {step}: norm {weights.norm():.4f}", flush=True)


def main(mode: str) -> None:
    if mode == "serve":
        serve()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    beside = start_server() if mode == "server" and rank == 0 else None
    print(f"[rank {rank}] connecting to the store at {ADDRESS[0]}:{ADDRESS[1]}", flush=True)
    store = connect(host=mode == "client" and rank == 0)
    train(rank, world, store)
    if beside is not None:
        beside.terminate()


if __name__ == "__main__":
    main(sys.argv[1])
