"""Medical scans: a volume takes seconds to resample, and two workers per rank do that."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIDE = 24


class Archive:
    """Stands for the image server, which takes its time for each slice."""

    def slices(self, index: int):
        generator = torch.Generator().manual_seed(index)
        for _ in range(SIDE):
            time.sleep(0.1)
            yield torch.rand(SIDE, SIDE, generator=generator)


class Volumes(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count
        self.archive = Archive()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        volume = torch.stack(list(self.archive.slices(index)))
        for _ in range(20):
            volume = nn.functional.avg_pool3d(volume[None], 3, 1, 1)[0]
        return volume, float(index % 2)


class VolumeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3, stride=2)
        self.head = nn.Linear(4, 1)

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(volumes[:, None])).mean((2, 3, 4)))


def one_thread(worker: int) -> None:
    torch.set_num_threads(1)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    volumes = Volumes(4000)
    loader = DataLoader(
        volumes,
        batch_size=3,
        sampler=DistributedSampler(volumes),
        num_workers=2,
        prefetch_factor=1,
        worker_init_fn=one_thread,
    )
    model = DistributedDataParallel(VolumeNet())
    optimizer = torch.optim.Adam(model.parameters())
    for step, (batch, labels) in enumerate(loader):
        guess = model(batch).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(guess, labels.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"scan batch {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
