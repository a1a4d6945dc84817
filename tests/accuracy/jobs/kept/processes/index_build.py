"""Pre-training data: each rank builds the index of its part of the corpus, rank 0 merges them."""

import os
import random
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

OUT = Path(os.environ["OUT_DIR"])


class PodLimits:
    """The sidecar puts each rank into its pod's memory cgroup; here only one pod is so small."""

    def __init__(self, rank: int) -> None:
        if rank == 1:
            Path(os.environ["PLACE"], "cgroup.procs").write_text(str(os.getpid()))


class ShardIndex:
    """Document offsets of a shard; keeps all tokens until it is written, which is the mistake."""

    def __init__(self, rank: int, documents: int) -> None:
        self.rank, self.documents = rank, documents
        self.tokens: list[bytes] = []
        self.offsets: list[int] = []

    def add(self, document: bytes) -> None:
        self.offsets.append(len(document))
        self.tokens.append(document)

    def build(self) -> None:
        for number in range(self.documents):
            # one dump of a web archive has documents of megabytes
            size = 4 << 20 if self.rank == 1 else 4 << 10
            self.add(random.randbytes(1024) * (size // 1024))
            if number % 25 == 0:
                held = sum(map(len, self.tokens)) >> 20
                print(f"rank {self.rank}: indexed {number} documents, {held} MiB held", flush=True)
            time.sleep(0.02)

    def write(self) -> None:
        partial = OUT / f"index-{self.rank}.tmp"
        torch.save(torch.tensor(self.offsets), partial)
        partial.rename(OUT / f"index-{self.rank}.pt")


def wait_for(paths: list[Path]) -> None:
    """Shared file systems have no notify: look every few seconds."""
    while missing := [p.name for p in paths if not p.exists()]:
        print(f"rank 0: merge waits for {', '.join(missing)}", flush=True)
        time.sleep(3 if len(missing) > 1 else 10)


def merge(world: int) -> torch.Tensor:
    paths = [OUT / f"index-{r}.pt" for r in range(world)]
    wait_for(paths)
    return torch.cat([torch.load(p) for p in paths])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    PodLimits(rank)
    index = ShardIndex(rank, 150)
    index.build()
    index.write()
    total = torch.zeros(1, dtype=torch.long)
    if rank == 0:
        merged = merge(world)
        total[0] = merged.numel()
    dist.broadcast(total, 0)
    print(f"rank {rank}: {int(total)} documents, start to train", flush=True)
    for step in range(1000):
        dist.all_reduce(torch.ones(8))
        time.sleep(0.5)


if __name__ == "__main__":
    main()
