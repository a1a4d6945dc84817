"""mp.spawn starts a process for each visible card, and the config says how many there should be."""

import os

import torch.distributed as dist
import torch.multiprocessing as mp

CARDS, CONFIGURED = 3, 4


def work(rank, path):
    print(f"worker {rank}: joining", flush=True)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=CONFIGURED)


if __name__ == "__main__":
    mp.spawn(work, args=(os.path.join(os.environ["OUT_DIR"], "store"),), nprocs=CARDS)
