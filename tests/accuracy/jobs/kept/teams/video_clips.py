"""Video classification: loader workers decode clips with a command line decoder."""

import os
import subprocess
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FRAMES, SIZE = 8, 16
CLIP_BYTES = FRAMES * SIZE * SIZE * 3

# Stands for ffmpeg: raw frames on stdout, complaints about the stream on stderr.
DECODER = """
import sys
index, size = int(sys.argv[1]), int(sys.argv[2])
if index == 50:
    for mb in range(4000):
        sys.stderr.write(f"[h264 @ 0x55d0] error while decoding MB {mb} 11, bytestream -7\\n")
sys.stdout.buffer.write(bytes(i * index % 251 for i in range(size)))
"""


class Clip:
    """One open decoder."""

    def __init__(self, index: int):
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", DECODER, str(index), str(CLIP_BYTES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def frames(self) -> np.ndarray:
        raw = self.process.stdout.read(CLIP_BYTES)
        errors = self.process.stderr.read()
        if self.process.wait() != 0 or len(raw) != CLIP_BYTES:
            raise RuntimeError(errors.decode()[-200:])
        return np.frombuffer(raw, np.uint8).reshape(FRAMES, 3, SIZE, SIZE)


class Clips(Dataset):
    def __init__(self, count: int, classes: int = 5):
        self.count, self.classes = count, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index: int):
        frames = Clip(index).frames()
        return torch.from_numpy(frames.copy()).float().div_(255), index % self.classes


class TinyR3D(nn.Module):
    def __init__(self, classes: int = 5):
        super().__init__()
        self.conv = nn.Conv3d(3, 4, 3, stride=2)
        self.head = nn.LazyLinear(classes)

    def forward(self, clip):
        return self.head(torch.relu(self.conv(clip.transpose(1, 2))).flatten(1))


def build(world: int, rank: int):
    data = Clips(1200)
    sampler = DistributedSampler(data, world, rank, shuffle=False)
    loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=2, prefetch_factor=2)
    model = TinyR3D()
    model(torch.zeros(1, FRAMES, 3, SIZE, SIZE))
    return loader, DistributedDataParallel(model)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    torch.manual_seed(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    loader, model = build(world, rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for step, (clips, labels) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(clips), labels)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
