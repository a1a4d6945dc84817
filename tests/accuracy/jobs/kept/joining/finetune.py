"""Fine-tuning with DistributedDataParallel, an EMA of the weights, and a metric over all ranks."""

import copy
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Settings:
    epochs: int = 10_000
    batch: int = 8
    hidden: int = 256
    log_every: int = 1


class Pictures(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.02)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3 * 16 * 16, generator=generator), index % 10


class Net(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(768, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.head = nn.Linear(hidden, 10)

    def forward(self, pictures):
        return self.head(torch.relu(self.body(pictures)))


class Average:
    """Exponential moving average of the weights."""

    def __init__(self, model: nn.Module, decay: float = 0.99):
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for ours, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            ours.lerp_(theirs, 1 - self.decay)


def train(settings: Settings) -> None:
    rank = dist.get_rank()
    net = Net(settings.hidden)
    average = Average(net)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Pictures()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=settings.batch, sampler=sampler)
    step = 0
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(net)
            if step % settings.log_every == 0 and rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            step += 1


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=45))
    try:
        train(Settings())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
