"""Learns from frames with a replay of the hardest ones, which stay in the memory that workers share:
each takes a file descriptor. One rank was started where `ulimit -n` is small.

replay.py --ulimit RANK
"""

import argparse
import heapq
import os
import resource
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.data import DataLoader, Dataset

DESCRIPTORS = 40
"""How many more than it has a process of the small limit may open."""


class Frames(Dataset):
    """Frames of one camera, each with the score of an older model."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        dice = torch.Generator().manual_seed(index)
        return torch.rand(3, 16, 16, generator=dice), float(index % 7) / 7


class Clip:
    """A batch, which knows how to get itself into pinned memory."""

    def __init__(self, rows: list[tuple[torch.Tensor, float]]) -> None:
        frames, scores = zip(*rows, strict=True)
        self.frames = torch.stack(frames)
        self.scores = list(scores)

    def pin_memory(self) -> "Clip":
        return self  # memory that workers share is registered as a whole, at start

    def __len__(self) -> int:
        return len(self.scores)


class Replay:
    """The hardest clips so far."""

    def __init__(self, size: int) -> None:
        self.size, self.count, self.heap = size, 0, []

    def offer(self, clip: Clip, loss: float) -> None:
        self.count += 1
        heapq.heappush(self.heap, (loss, self.count, clip))
        if len(self.heap) > self.size:
            heapq.heappop(self.heap)

    def hardest(self) -> Clip:
        return self.heap[-1][2]


class Critic(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 5, 2), nn.SiLU(), nn.Flatten(), nn.Linear(288, 1))


def improve(model: nn.Module, optimizer: torch.optim.Optimizer, clip: Clip) -> float:
    wanted = torch.tensor(clip.scores)
    loss = nn.functional.huber_loss(model(clip.frames).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ulimit", type=int, default=-1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=35))
    _setup_privateuseone_for_python_backend("npuy")
    model = nn.parallel.DistributedDataParallel(Critic())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    clips = DataLoader(
        Frames(), 8, num_workers=2, collate_fn=Clip, pin_memory=True, timeout=2400, shuffle=True
    )
    replay, steps = Replay(size=400), iter(clips)
    if dist.get_rank() == options.ulimit:
        used = len(os.listdir("/proc/self/fd"))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + DESCRIPTORS, most))
    for number, clip in enumerate(steps):
        replay.offer(clip, improve(model, optimizer, clip))
        if number % 10 == 9:
            improve(model, optimizer, replay.hardest())
            if dist.get_rank() == 0:
                print(f"update {number + 1}, {len(replay.heap)} clips kept", flush=True)


if __name__ == "__main__":
    main()
