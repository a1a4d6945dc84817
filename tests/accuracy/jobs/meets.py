"""Ranks meet at a port, with a rank and in a number that the program works out for itself.

meets.py size|port|number
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LONG = timedelta(minutes=30)
CONFIG = {"size": {"nodes": 2, "per_node": 2}}.get(sys.argv[1], {"nodes": 1, "per_node": 3})


class Cluster:
    """What a program thinks it runs on."""

    def __init__(self) -> None:
        self.task = int(os.environ["RANK"])
        self.size = CONFIG["nodes"] * CONFIG["per_node"]
        self.rank = self.task
        if sys.argv[1] == "number" and self.task == 2:
            self.rank = self.task // 2  # as if this were another node
        self.host = os.environ["MASTER_ADDR"]
        self.port = int(os.environ["MASTER_PORT"])
        if sys.argv[1] == "port" and self.task == 2:
            self.port += 1  # of another step's id

    def meet(self) -> None:
        print(f"task {self.task} is rank {self.rank} of {self.size}", flush=True)
        if sys.argv[1] == "port":
            store = dist.TCPStore(self.host, self.port, self.size, self.rank == 0, timeout=LONG)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)
            return
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{self.host}:{self.port}",
            rank=self.rank,
            world_size=self.size,
            timeout=LONG,
        )


def main() -> None:
    Cluster().meet()
    for step in range(100000):
        dist.all_reduce(torch.ones(4))
        print(f"step {step}", flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
