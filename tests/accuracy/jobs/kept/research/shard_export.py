"""The end of a run: rank 0 exports the model in shards to slow storage while the others wait."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 3
BLOCK = 48 * 1024


class SlowDisk:
    """A mount with a quota on bandwidth; the client gets one block per tick."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def write(self, name: str, data: bytes, blocks: int) -> None:
        with open(self.folder / name, "wb", buffering=0) as file:
            for _ in range(blocks):
                file.write(data)
                os.fsync(file.fileno())
                time.sleep(0.15)


class Exporter:
    def __init__(self, disk: SlowDisk, shards: int) -> None:
        self.disk, self.shards = disk, shards

    def export(self, weights: torch.Tensor) -> None:
        data = weights.numpy().tobytes()
        data *= BLOCK // len(data)
        for i in range(self.shards):
            name = f"model-{i + 1:05}-of-{self.shards:05}.safetensors"
            print(f"writing {name}", flush=True)
            self.disk.write(name, data, blocks=400)


def train(weights: torch.Tensor, steps: int, rank: int) -> None:
    for step in range(1, steps + 1):
        time.sleep(0.1)
        dist.all_reduce(weights, op=dist.ReduceOp.SUM)
        weights /= WORLD
        if rank == 0:
            print(f"step {step}", flush=True)


def main(rank: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(hours=3))
    weights = torch.ones(64)
    train(weights, 5, rank)
    if rank == 0:
        Exporter(SlowDisk(Path(os.environ["OUT_DIR"]) / "export"), shards=12).export(weights)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, nprocs=WORLD)
