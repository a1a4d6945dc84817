"""Pretraining on file shards, with plain gradient averaging instead of DDP."""

import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

LOG = logging.getLogger("pretrain")
ROWS_PER_SHARD = 12


def write_corpus(folder: Path, shards: int) -> None:
    """The output of the tokenisation job: as many files as it happened to write."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        generator = torch.Generator().manual_seed(number)
        torch.save(
            torch.randint(0, 64, (ROWS_PER_SHARD, 17), generator=generator),
            folder / f"shard-{number:05d}.pt",
        )


class ShardedTokens(IterableDataset):
    """Each rank, and each of its workers, reads files of its own."""

    def __init__(self, folder: Path, rank: int, world: int):
        self.files = sorted(folder.glob("shard-*.pt"))[rank::world]

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        files = self.files if info is None else self.files[info.id :: info.num_workers]
        for file in files:
            yield from torch.load(file)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.rnn = torch.nn.GRU(32, 32, batch_first=True)
        self.out = torch.nn.Linear(32, 64)

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(self.embed(rows[:, :-1]))
        return torch.nn.functional.cross_entropy(
            self.out(hidden).flatten(0, 1), rows[:, 1:].flatten()
        )


class DataParallel:
    """Averages gradients in one flat buffer."""

    def __init__(self, model: torch.nn.Module):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.world = dist.get_world_size()
        for param in self.params:
            dist.broadcast(param.data, src=0)

    def reduce_gradients(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= self.world
        for param, part in zip(self.params, flat.split([p.numel() for p in self.params])):
            param.grad.copy_(part.view_as(param))


class EpochRunner:
    def __init__(self, folder: Path):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.loader = DataLoader(ShardedTokens(folder, rank, world), batch_size=4, num_workers=1)
        self.model = Model()
        self.parallel = DataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.step = 0

    def train_epoch(self, epoch: int) -> float:
        total = 0.0
        for rows in self.loader:
            loss = self.model.loss(rows)
            self.optimizer.zero_grad()
            loss.backward()
            self.parallel.reduce_gradients()
            self.optimizer.step()
            self.step += 1
            total += loss.item()
            LOG.info(
                "rank %d epoch %d step %d loss %.3f", dist.get_rank(), epoch, self.step, loss.item()
            )
        return total

    def end_of_epoch(self, epoch: int, total: float) -> None:
        LOG.info("rank %d finished epoch %d", dist.get_rank(), epoch)
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(self.model.state_dict(), Path(os.environ["OUT_DIR"]) / f"epoch{epoch}.pt")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    folder = Path(os.environ["OUT_DIR"]) / "tokens"
    if dist.get_rank() == 0:
        write_corpus(folder, shards=8)
    dist.barrier()
    runner = EpochRunner(folder)
    for epoch in range(3):
        runner.end_of_epoch(epoch, runner.train_epoch(epoch))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
