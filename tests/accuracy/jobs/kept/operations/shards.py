"""Streams shards from an object store in DataLoader workers."""

import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import outsider

PORT = 32021


class ShardReader:
    """Bytes of a shard, with a retry."""

    def __init__(self, base: str):
        self.base = base

    def fetch(self, name: str) -> bytes:
        for attempt in range(3):
            try:
                with urllib.request.urlopen(f"{self.base}/{name}", timeout=3600) as answer:
                    return answer.read()
            except OSError:
                time.sleep(2**attempt)
        raise RuntimeError(f"cannot read {name}")


class StreamingShards(IterableDataset):
    def __init__(self, reader: ShardReader, shards: list[str]):
        self.reader, self.shards = reader, shards

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        for name in self.shards[info.id :: info.num_workers]:
            yield from self.decode(self.reader.fetch(name))

    def decode(self, body: bytes) -> Iterator[torch.Tensor]:
        samples = torch.frombuffer(bytearray(body), dtype=torch.uint8).float().view(-1, 16384)
        for sample in samples:
            yield sample[:32]


def shards_of(rank: int) -> list[str]:
    return (
        [f"shard-{n:05d}" for n in range(rank * 1000 + 1, rank * 1000 + 500)]
        if rank != 2
        else [f"shard-{n:05d}" for n in range(4, 500)]
    )


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    if rank == 0:
        outsider.serve("objectstore.py", PORT, "half")
    dist.barrier()
    own = shards_of(rank)
    if rank == 0:
        own = [name for name in own if name != "shard-00011"]
    data = DataLoader(
        StreamingShards(ShardReader(f"http://127.0.0.1:{PORT}"), own),
        batch_size=4,
        num_workers=2,
        prefetch_factor=1,
    )
    model = DistributedDataParallel(nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(data):
        optimizer.zero_grad(set_to_none=True)
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.3)
        if rank == 0:
            print(f"step {step}", flush=True)


main()
