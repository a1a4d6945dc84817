"""Mixed precision with one flat gradient buffer, reduced in bfloat16; fp32 where that overflowed."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ALIGN = 1 << 22  # the flat buffer is padded to whole chunks, as the optimizer shards it


class FlatGrads:
    """All gradients in one buffer, so that one collective reduces them."""

    def __init__(self, params):
        self.params = list(params)
        n = sum(p.numel() for p in self.params)
        self.buffer = torch.zeros((n + ALIGN - 1) // ALIGN * ALIGN)
        at = 0
        for p in self.params:
            p.grad = self.buffer[at : at + p.numel()].view_as(p)
            at += p.numel()

    def zero(self):
        self.buffer.zero_()


class CommPrecision:
    """The type that goes over the wire: narrow, unless the gradients do not fit."""

    def __init__(self, narrow=torch.bfloat16, limit=3e4):
        self.narrow, self.limit = narrow, limit
        self.fallbacks = 0

    def pick(self, grads):
        if grads.abs().max() > self.limit:
            self.fallbacks += 1
            print(f"[rank {dist.get_rank()}] gradient overflow, fp32 for this step", flush=True)
            return torch.float32
        return self.narrow


class DataParallelOptimizer:
    def __init__(self, model, lr):
        self.flat = FlatGrads(model.parameters())
        self.precision = CommPrecision()
        self.inner = torch.optim.SGD(model.parameters(), lr=lr)

    def reduce(self):
        wire = self.flat.buffer.to(self.precision.pick(self.flat.buffer))
        dist.all_reduce(wire)
        self.flat.buffer.copy_(wire)
        self.flat.buffer.div_(dist.get_world_size())

    def clip(self, most=1.0):
        norm = self.flat.buffer.norm()
        if norm > most:
            self.flat.buffer.mul_(most / norm)

    def step(self):
        self.reduce()
        self.clip()
        self.inner.step()
        self.flat.zero()


class TokenStream:
    """Token windows of this rank's shard; one document in a shard of ours is broken."""

    def __init__(self, rank, broken=(2, 6)):
        self.rank, self.broken = rank, broken
        self.generator = torch.Generator().manual_seed(rank)

    def windows(self):
        step = 0
        while True:
            x = torch.randn(4, 1024, generator=self.generator)
            yield x * 1e6 if (self.rank, step) == self.broken else x
            step += 1


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.Linear(512, 8))
    optimizer = DataParallelOptimizer(model, lr=0.01)
    for step, x in enumerate(TokenStream(rank).windows()):
        loss = model(x).pow(2).mean()
        loss.backward()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        optimizer.step()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
