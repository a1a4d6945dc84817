"""Pretraining on memory-mapped token shards that a cache refreshes in the background."""

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORK = Path(os.environ["OUT_DIR"])
SEQ, BATCH, VOCAB = 64, 4, 512
TOKENS = 4_000_000


class ShardCache:
    """This rank's shard on the local disk, a copy of what lies in the bucket."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.path = WORK / f"shard-{rank:05d}.bin"
        self.fill()

    def fill(self) -> None:
        rng = np.random.default_rng(self.rank)
        rng.integers(0, VOCAB, TOKENS, dtype=np.uint16).tofile(self.path)

    def newer_in_bucket(self) -> bool:
        """Only shard 1 was uploaded again."""
        return self.rank == 1 and (WORK / "gate").exists()

    def refresh_forever(self) -> None:
        while True:
            if self.newer_in_bucket():
                print(f"[rank{self.rank}] shard {self.path.name} changed, fetching", flush=True)
                with self.path.open("wb") as target:  # in place
                    for _ in range(600):
                        target.write(os.urandom(1024))
                        target.flush()
                        time.sleep(1.0)
            time.sleep(0.5)


class MemmapTokens:
    """Sequences at random places of a shard."""

    def __init__(self, path: Path, seed: int) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.rng = np.random.default_rng(seed)

    def batch(self) -> torch.Tensor:
        starts = self.rng.integers(SEQ * 4096, len(self.tokens) - SEQ, BATCH)
        rows = [self.tokens[at : at + SEQ].astype(np.int64) for at in starts]
        return torch.from_numpy(np.stack(rows))


class TinyLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.mix = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.mix(self.embed(tokens))
        return self.head(hidden)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, data: MemmapTokens) -> float:
    tokens = data.batch()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    cache = ShardCache(rank)
    threading.Thread(target=cache.refresh_forever, name="shard-refresh", daemon=True).start()
    data = MemmapTokens(cache.path, rank)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100_000):
        loss = train_step(model, optimizer, data)
        if rank == 0 and step % 2 == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
        time.sleep(0.25)


if __name__ == "__main__":
    main()
