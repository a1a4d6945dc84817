"""Video pretraining: a worker needs some twenty seconds for a batch, for it reads clips from far away in small
pieces and decodes them in Python; the ranks wait for data nearly all the time, and get it.
"""

import time
import zlib

import numpy as np
import torch
import torch.distributed as dist
from common import Learner, join, say
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

FRAMES, SIDE = 24, 96


class Remote:
    """A file far away: a piece at a time, a quarter of a second each."""

    def __init__(self, seed: int) -> None:
        frames = np.random.default_rng(seed).integers(0, 8, (FRAMES, SIDE, SIDE, 3), dtype=np.uint8)
        self.data = zlib.compress(frames.tobytes(), 6)

    def pieces(self, size: int = 24 << 10):
        for start in range(0, len(self.data), size):
            time.sleep(0.25)
            yield self.data[start : start + size]


def unpack(remote: Remote) -> np.ndarray:
    decoder = zlib.decompressobj()
    raw = b"".join(decoder.decompress(piece) for piece in remote.pieces()) + decoder.flush()
    return np.frombuffer(raw, np.uint8).reshape(FRAMES, SIDE, SIDE, 3)


def resize(frame: np.ndarray, side: int = 32) -> np.ndarray:
    """Bilinear, written by hand by somebody who did not trust the library."""
    out = np.empty((side, side))
    scale = (frame.shape[0] - 1) / (side - 1)
    grey = frame.mean(2)
    for y in range(side):
        for x in range(side):
            top, left = int(y * scale), int(x * scale)
            patch = grey[top : top + 2, left : left + 2]
            out[y, x] = float(patch.mean())
    return out


class Clips(Dataset):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        frames = unpack(Remote(index))
        small = np.stack([resize(frame) for frame in frames])
        return torch.from_numpy(small).float().flatten()[:64]


def loader(rank: int, world: int) -> DataLoader:
    sampler = DistributedSampler(Clips(), world, rank, shuffle=False)
    return DataLoader(
        Clips(),
        batch_size=8,
        sampler=sampler,
        num_workers=1,
        prefetch_factor=2,
        persistent_workers=True,
    )


def main() -> None:
    rank, world = join()
    learner = Learner()
    dist.barrier()
    began = time.monotonic()
    for step, batch in enumerate(loader(rank, world)):
        waited = time.monotonic() - began
        loss = learner.step(batch / 255)
        say(f"step {step}: loss {loss:.4f} (data {waited:.1f} s)")
        began = time.monotonic()


if __name__ == "__main__":
    main()
