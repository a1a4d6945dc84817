"""Image training straight from the object store: map-style dataset, workers, ranged reads."""

import argparse
import http.client
import os
from datetime import timedelta

import numpy as np
import services
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PORT_FILE = os.path.join(os.environ["OUT_DIR"], "store.port")


class ObjectClient:
    """A thin client with one connection per process; opened late, as workers are forked."""

    def __init__(self, bucket: str):
        self.bucket, self.connection = bucket, None

    def get_range(self, key: str, start: int, size: int, headers: dict | None = None) -> bytes:
        if self.connection is None:
            port = int(services.wait_for(PORT_FILE))
            self.connection = http.client.HTTPConnection("127.0.0.1", port)
        wanted = {"Range": f"bytes={start}-{start + size - 1}", **(headers or {})}
        self.connection.request("GET", f"/{self.bucket}/{key}", headers=wanted)
        return self.connection.getresponse().read()


class PackedImages(Dataset):
    """Images of one size, packed into a few big objects."""

    def __init__(self, count: int, cold: set[int]):
        self.count, self.cold = count, cold
        self.client = ObjectClient("datasets-eu")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pack, place = divmod(index, 512)
        # objects that were moved to the cold tier: the gateway waits for its backend
        headers = {"X-Stall": "1"} if index in self.cold else {}
        raw = self.client.get_range(f"pack-{pack:04d}.bin", place * 4096, 4096, headers)
        image = np.frombuffer(raw, dtype=np.uint8)[:768].reshape(3, 16, 16)
        return self.augment(torch.from_numpy(image.copy()).float() / 255), index % 10

    @staticmethod
    def augment(image: torch.Tensor) -> torch.Tensor:
        return image.flip(-1) if torch.rand(()) < 0.5 else image


def build_loader(args: argparse.Namespace) -> tuple[DataLoader, DistributedSampler]:
    cold = {args.cold} if args.cold >= 0 else set()
    data = PackedImages(6000, cold)
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(
        data, batch_size=8, sampler=sampler, num_workers=2, prefetch_factor=2, drop_last=True
    )
    return loader, sampler


class AverageMeter:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    @property
    def avg(self) -> float:
        return self.total / max(1, self.count)


def train_one_epoch(
    loader: DataLoader, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int
) -> None:
    losses, criterion = AverageMeter(), nn.CrossEntropyLoss()
    for i, (images, target) in enumerate(loader):
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item())
        if dist.get_rank() == 0:
            print(f"Epoch: [{epoch}][{i}/{len(loader)}] Loss {losses.avg:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cold", type=int, default=-1)
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    if dist.get_rank() == 0:
        services.start("gateway", PORT_FILE, "plain")
    services.wait_for(PORT_FILE)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    loader, sampler = build_loader(args)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train_one_epoch(loader, model, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
