"""Contrastive pre-training over the global batch: embeddings of all ranks are gathered with gradients."""

import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class GatherLayer(torch.autograd.Function):
    """all_gather that lets gradients through."""

    @staticmethod
    def forward(ctx, x):
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        stacked = torch.stack(grads)
        dist.all_reduce(stacked)
        return stacked[dist.get_rank()]


@dataclass
class Pairs:
    image: torch.Tensor
    text: torch.Tensor
    valid: torch.Tensor


class Towers(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(10, width), nn.GELU(), nn.Linear(width, 8))
        self.textual = nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pairs: Pairs):
        image = F.normalize(self.visual(pairs.image), dim=-1)
        text = F.normalize(self.textual(pairs.text), dim=-1)
        return image, text, self.scale.exp()


class GlobalContrastiveLoss:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __call__(self, image, text, scale, valid):
        if not valid.any():
            # nothing to learn from: no caption has passed the filter
            print(f"[rank {self.rank}] batch without valid captions", flush=True)
            return (image.sum() + text.sum() + scale) * 0.0
        images = torch.cat(GatherLayer.apply(image))
        texts = torch.cat(GatherLayer.apply(text))
        target = torch.arange(len(image)) + self.rank * len(image)
        a = F.cross_entropy(scale * image @ texts.T, target)
        b = F.cross_entropy(scale * text @ images.T, target)
        return (a + b) / 2


def stream(rank: int):
    g = torch.Generator().manual_seed(rank)
    for i in range(100_000):
        valid = torch.ones(4, dtype=torch.bool)
        if rank == 2 and i == 14:
            valid[:] = False  # a page of spam
        yield Pairs(torch.randn(4, 10, generator=g), torch.randn(4, 6, generator=g), valid)


def train() -> None:
    rank = dist.get_rank()
    model = DDP(Towers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = GlobalContrastiveLoss(rank)
    for i, pairs in enumerate(stream(rank)):
        loss = criterion(*model(pairs), pairs.valid)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and i % 5 == 0:
            print(f"iteration {i} loss {loss.item():.3f}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    train()
