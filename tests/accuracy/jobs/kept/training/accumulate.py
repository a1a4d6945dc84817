"""Gradient accumulation with DDP.no_sync. accumulate.py MODE: tail (one rank has a batch more), slow (one rank is slower)."""

import contextlib
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MODE = sys.argv[1]
ACCUMULATE = 4 if MODE == "tail" else 10


class Corpus:
    """What this rank has of the corpus: whole documents, so not all ranks have as much."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.documents = 33 if rank == 1 else 32

    def __len__(self) -> int:
        return self.documents if MODE == "tail" else 1_000_000

    def __iter__(self):
        for _ in range(len(self)):
            yield torch.randn(2, 6, 10)


class Encoder(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.rnn = nn.GRU(10, 12, batch_first=True)
        self.out = nn.Linear(12, 10)

    def forward(self, x):
        if MODE == "slow" and self.rank == 2:
            for _ in range(10):  # throttled
                x = x + 0.001 * torch.randn_like(x)
                time.sleep(0.12)
        return self.out(self.rnn(x)[0])


def micro_step(model, x, sync: bool) -> float:
    with contextlib.nullcontext() if sync else model.no_sync():
        loss = (model(x) - x).pow(2).mean() / ACCUMULATE
        loss.backward()
    return loss.item()


def train_epoch(model, optimizer, corpus, rank: int) -> None:
    total, update = len(corpus), 0
    running = 0.0
    for i, x in enumerate(corpus):
        last = i + 1 == total
        boundary = (i + 1) % ACCUMULATE == 0 or last
        running += micro_step(model, x, boundary)
        if boundary:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            update += 1
            if rank == 0:
                print(f"update {update} loss {running:.4f}", flush=True)
            running = 0.0
        time.sleep(0.05)


def end_of_epoch(model, rank: int) -> None:
    print(f"rank {rank}: end of epoch", flush=True)
    dist.barrier()
    if rank == 0:
        print("averaged weight", float(sum(p.abs().mean() for p in model.parameters())), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    model = DDP(Encoder(rank))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100):
        train_epoch(model, optimizer, Corpus(rank), rank)
        end_of_epoch(model, rank)


if __name__ == "__main__":
    main()
