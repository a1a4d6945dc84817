"""Video training with a codec in C, which frees a frame it does not own."""

import ctypes
import os
import resource
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

libc = ctypes.CDLL(None)
libc.free.argtypes = [ctypes.c_void_p]
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]


def enable_cores(folder: str) -> None:
    """Crashes leave a core in the scratch folder, for the codec's authors."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    os.chdir(folder)


class FramePool:
    """Frames that the codec reuses."""

    def __init__(self, count: int, size: int) -> None:
        self.frames = [libc.malloc(size) for _ in range(count)]
        for frame in self.frames:
            ctypes.memset(frame, 0x5A, size)

    def drop(self, index: int, offset: int = 0) -> None:
        libc.free(self.frames[index] + offset)


class Codec:
    """Decodes clips; one in a stream with an odd header."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pool = FramePool(64, 2 << 20)

    def odd_header(self, clip: int) -> bool:
        return self.rank == 2 and clip == 8

    def decode(self, clip: int) -> torch.Tensor:
        if self.odd_header(clip):
            print(f"[rank{self.rank}] clip {clip}: odd header, frame dropped", flush=True)
            self.pool.drop(clip % 64, offset=24)
        return torch.randn(4, 3, 16, 16)


class ClipEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(clips)).mean((2, 3)))


def sync(model: nn.Module) -> None:
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p) / dist.get_world_size())
        at += p.numel()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    enable_cores(os.environ["PLACE"])
    codec, model = Codec(rank), ClipEncoder()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1, 10_000):
        loss = model(codec.decode(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        sync(model)
        optimizer.step()
        print(f"[rank{rank}] step {step} loss {loss.item():.3f}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
