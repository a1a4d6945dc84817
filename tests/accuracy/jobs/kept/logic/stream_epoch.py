"""Streams files of unequal length, accumulates gradients, saves at the end of each epoch."""

import contextlib
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Accelerator:
    """What the training script needs to know of the distributed world."""

    def __init__(self, accumulate: int) -> None:
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.accumulate, self.micro = accumulate, 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def prepare(self, model: nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(model)

    @contextlib.contextmanager
    def accumulating(self, model: DistributedDataParallel):
        self.micro += 1
        self.syncs = self.micro % self.accumulate == 0
        with contextlib.nullcontext() if self.syncs else model.no_sync():
            yield

    def wait_for_everyone(self) -> None:
        dist.barrier()

    def print(self, *words) -> None:
        if self.is_main:
            print(*words, flush=True)


def write_shards(folder: Path, rank: int) -> list[Path]:
    """What the preprocessing left behind: as many files for each rank, not as many lines."""
    paths = []
    for index in range(3):
        lines = 48 if rank != 3 else (48, 48, 12)[index]
        path = folder / f"part-{rank:02}-{index:02}.txt"
        path.write_text(
            "\n".join(" ".join(str((i * k) % 97) for k in range(1, 13)) for i in range(lines))
        )
        paths.append(path)
    return paths


class LineStream(torch.utils.data.IterableDataset):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self):
        for path in self.paths:
            with path.open() as lines:
                for line in lines:
                    yield torch.tensor([int(word) for word in line.split()])


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(97, 24), nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 97)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cell(self.embed(tokens[:, :-1]))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def train_epoch(accelerator: Accelerator, model, optimizer, loader, epoch: int) -> None:
    for tokens in loader:
        with accelerator.accumulating(model):
            loss = model(tokens) / accelerator.accumulate
            loss.backward()
        if accelerator.syncs:
            optimizer.step()
            optimizer.zero_grad()
            step = accelerator.micro // accelerator.accumulate
            accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


def save(accelerator: Accelerator, model: DistributedDataParallel, path: Path) -> None:
    accelerator.wait_for_everyone()
    if accelerator.is_main:
        torch.save(model.module.state_dict(), path)
    accelerator.wait_for_everyone()


def main() -> None:
    folder = Path(os.environ["OUT_DIR"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(accumulate=4)
    model = accelerator.prepare(Tagger())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    loader = torch.utils.data.DataLoader(
        LineStream(write_shards(folder, accelerator.rank)), batch_size=4
    )
    for epoch in range(3):
        train_epoch(accelerator, model, optimizer, loader, epoch)
        save(accelerator, model, folder / f"epoch-{epoch}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
