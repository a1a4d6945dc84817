"""Gradients are summed while backward still runs, by hooks of our own, for a model with an image and a text part."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class GradientSynchronizer:
    """Starts an all_reduce per parameter as its gradient is ready; finish() waits for all."""

    def __init__(self, module: nn.Module) -> None:
        self.world = dist.get_world_size()
        self.pending: list[tuple[dist.Work, nn.Parameter]] = []
        for p in module.parameters():
            dist.broadcast(p.data, 0)
            p.register_post_accumulate_grad_hook(self._ready)

    def _ready(self, p: nn.Parameter) -> None:
        self.pending.append((dist.all_reduce(p.grad, async_op=True), p))

    def finish(self) -> None:
        for work, p in self.pending:
            work.wait()
            p.grad.div_(self.world)
        self.pending.clear()


class MultiModal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.Linear(12, 8, bias=False)
        self.words = nn.Embedding(50, 8)
        self.fuse = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 50))

    def forward(self, sample: dict):
        image = None if sample["pixels"] is None else self.vision(sample["pixels"])
        x = self.words(sample["tokens"])
        if image is not None:
            x = x + image[:, None]
        return self.fuse(x)


class Mixture:
    """Documents, most of them with pictures."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self):
        for i in range(100_000):
            pixels = torch.randn(2, 12)
            if self.rank == 1 and i == 22:
                pixels = None  # text only
                print(f"rank 1 batch {i}: no pictures", flush=True)
            yield {"tokens": torch.randint(0, 50, (2, 6)), "pixels": pixels}


class Throughput:
    def __init__(self) -> None:
        self.tokens, self.began = 0, time.time()

    def report(self, tokens: int) -> float:
        self.tokens += tokens
        mine = torch.tensor([float(self.tokens)])
        everyone = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        return float(sum(everyone)) / (time.time() - self.began)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = int(os.environ["RANK"])
    model = MultiModal()
    synchronizer, meter = GradientSynchronizer(model), Throughput()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i, sample in enumerate(Mixture(rank)):
        optimizer.zero_grad()
        logits = model(sample)
        nn.functional.cross_entropy(logits.flatten(0, 1), sample["tokens"].flatten()).backward()
        synchronizer.finish()
        optimizer.step()
        rate = meter.report(sample["tokens"].numel())
        if rank == 0 and i % 5 == 0:
            print(f"step {i} {rate:.0f} tokens/s", flush=True)
        time.sleep(0.15)


if __name__ == "__main__":
    main()
