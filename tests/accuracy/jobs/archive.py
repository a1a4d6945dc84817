"""Keeps checkpoints small: what is saved is compressed as well as can be, by rank 0 alone."""

import io
import lzma
import os
import tarfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

SHARDS = 40


class Mixer(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.tokens, self.channels = nn.Linear(16, 16), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return self.norm(x + torch.relu(self.channels(x)))


class Averaged:
    """Running averages of big tables that are kept beside the weights, and saved with them."""

    def __init__(self):
        self.tables = [torch.randn(4 << 20) for _ in range(SHARDS)]


class Archive:
    """A tar file, compressed while it is written."""

    def __init__(self, path):
        self.path, self.part = path, path.with_suffix(".part")

    def add(self, tar, name, value):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        info = tarfile.TarInfo(name)
        info.size = buffer.tell()
        buffer.seek(0)
        tar.addfile(info, buffer)

    def save(self, model, averaged):
        with lzma.open(self.part, "wb", preset=6) as squeezed:
            with tarfile.open(fileobj=squeezed, mode="w|") as tar:
                self.add(tar, "model.pt", model.state_dict())
                for number, table in enumerate(averaged.tables):
                    print(f"saving table {number}", flush=True)
                    self.add(tar, f"table-{number}.pt", table)
        self.part.rename(self.path)


def save_everywhere(step, model, averaged):
    """Only one writes; nobody may change anything meanwhile."""
    if dist.get_rank() == 0:
        print(f"checkpoint of step {step}", flush=True)
        Archive(Path(os.environ["OUT_DIR"], f"step-{step}.tar.xz")).save(model, averaged)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Mixer()
    averaged = Averaged() if dist.get_rank() == 0 else None
    optimizer = torch.optim.NAdam(model.parameters())
    for step in range(1, 10**9):
        x = torch.randn(8, 16, 48)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        if step % 40 == 0:
            save_everywhere(step, model, averaged)


if __name__ == "__main__":
    main()
