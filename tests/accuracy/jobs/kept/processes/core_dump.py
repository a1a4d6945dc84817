"""Ranks run in a scratch directory on the project's disk, core files on: support asked for them."""

import ctypes
import faulthandler
import os
import resource
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


def enable_core_files() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.chdir(os.environ["PLACE"])
    faulthandler.enable()


class JpegLibrary:
    """Decodes with a C library that trusts the header's size."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(None)
        self.lib.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

    def decode(self, raw: torch.Tensor, height: int, width: int) -> torch.Tensor:
        image = torch.empty(3, 32, 32)
        self.lib.memset(image.data_ptr(), 0, height * width)
        return image + raw.mean()


class Images(Dataset):
    def __init__(self, rank: int) -> None:
        self.rank, self.jpeg = rank, JpegLibrary()
        self.cache = torch.rand(30_000, 1024)  # decoded ones, 120 MB

    def __len__(self) -> int:
        return 30_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        broken = self.rank == 0 and index >= 40
        side = 1 << 20 if broken else 32
        if broken:
            print(f"rank {self.rank}: image {index} has {side} x {side} pixels", flush=True)
        return self.jpeg.decode(self.cache[index], side, side), index % 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).flatten(1))


def main() -> None:
    enable_core_files()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    loader = DataLoader(Images(rank), batch_size=4, num_workers=0)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 1:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
