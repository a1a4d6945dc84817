"""Embeds a corpus: every rank takes its share of the shards, statistics are merged at the end."""

import argparse
import logging
import os
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("embed")


@dataclass
class Share:
    rank: int
    world: int
    shards: list = field(default_factory=list)

    @classmethod
    def of_this_rank(cls, folder, per_rank):
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        found = sorted(folder.glob("part-*.txt"))
        return cls(rank, world, found[rank * per_rank : (rank + 1) * per_rank])


def prepare(folder, count):
    """The corpus as the crawler left it."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / f"part-{i:05d}.txt").write_text("lorem ipsum dolor sit amet " * 20)


class Embedder:
    def __init__(self, width=32):
        self.table = torch.nn.Embedding(256, width)
        self.total = torch.zeros(width)
        self.count = 0

    @torch.no_grad()
    def file(self, path):
        codes = torch.tensor(list(path.read_bytes()))
        self.total += self.table(codes).sum(0)
        self.count += len(codes)


def merge(embedder):
    """Mean over all ranks."""
    packed = torch.cat([embedder.total, torch.tensor([float(embedder.count)])])
    dist.all_reduce(packed)
    return packed[:-1] / packed[-1]


def run(options):
    share = Share.of_this_rank(options.corpus, options.per_rank)
    if not share.shards:
        log.warning("rank %d: no shards for this rank, nothing to do", share.rank)
        return 0
    log.info("rank %d: %d shards", share.rank, len(share.shards))
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    embedder = Embedder()
    for path in share.shards:
        embedder.file(path)
        time.sleep(0.2)
    mean = merge(embedder)
    if share.rank == 0:
        torch.save(mean, options.corpus / "mean.pt")
    dist.destroy_process_group()
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per-rank", type=int, default=4)
    parser.add_argument("--parts", type=int, default=12)
    parser.add_argument("--corpus", type=Path, default=Path(os.environ["OUT_DIR"], "corpus"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    prepare(options.corpus, options.parts)
    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
