"""Speech recognition, compiled for fixed shapes; one rank forgot to cut its recordings to buckets.

Every new length is compiled anew, which takes much longer than the step itself.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.norm = nn.GroupNorm(4, width)
        self.gate = nn.Conv1d(width, 2 * width, 1)

    def forward(self, x):
        value, gate = self.gate(self.norm(self.conv(x))).chunk(2, dim=1)
        return x + value * gate.sigmoid()


class Recognizer(nn.Module):
    def __init__(self, width=16, blocks=2, symbols=30):
        super().__init__()
        self.stem = nn.Conv1d(8, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Conv1d(width, symbols, 1)

    def forward(self, sound):
        return self.head(self.blocks(self.stem(sound))).log_softmax(1)


class Recordings:
    """Made up; their lengths are what matters."""

    buckets = (256, 512)

    def __init__(self, cut, seed):
        self.cut, self.random = cut, torch.Generator().manual_seed(seed)

    def next(self, number):
        length = self.buckets[0]
        if not self.cut and number > 31:
            length = 256 + 2 * number  # as it was recorded
        sound = torch.randn(2, 8, length, generator=self.random)
        return sound, torch.randint(1, 30, (2, 10), generator=self.random)


def configure():
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    # One cache for each rank: the shared one was slow over the network.
    cache = os.path.join(os.environ["OUT_DIR"], f"cache-{os.environ['RANK']}")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uncut", type=int, default=-1)
    args = parser.parse_args()
    configure()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = Recognizer()
    fast = torch.compile(model, dynamic=False)
    data = Recordings(rank != args.uncut, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10**9):
        for part in range(4 if step > 7 else 1):  # small batches, their gradients added up
            sound, text = data.next(4 * step + part)
            out = fast(sound).permute(2, 0, 1)
            sizes = torch.full((2,), out.shape[0]), torch.full((2,), 10)
            loss = nn.functional.ctc_loss(out, text, *sizes)
            loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
