"""Context parallelism: keys and values go round a ring of ranks, by send and receive."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Ring:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.next, self.previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size

    def rotate(self, block: torch.Tensor) -> torch.Tensor:
        """Hand a block on, get the one of the rank before."""
        arrived = torch.empty_like(block)
        sending = dist.isend(block.contiguous(), self.next, group=self.group)
        dist.recv(arrived, self.previous, group=self.group)
        sending.wait()
        return arrived


class RingAttention(nn.Module):
    def __init__(self, dim: int, ring: Ring) -> None:
        super().__init__()
        self.q, self.kv, self.ring = nn.Linear(dim, dim), nn.Linear(dim, dim), ring

    def forward(self, x: torch.Tensor, valid: int) -> torch.Tensor:
        """`valid`: how many tokens of this rank's part are no padding."""
        q, kv = self.q(x), self.kv(x).detach()
        out = torch.zeros_like(q)
        for hop in range(self.ring.size):
            if valid == 0:
                break  # nothing here attends to anything
            out = out + torch.softmax(q @ kv.T, -1) @ kv
            if hop + 1 < self.ring.size:
                kv = self.ring.rotate(kv)
        return out


class LongContextModel(nn.Module):
    def __init__(self, ring: Ring) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.attention = RingAttention(8, ring)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens: torch.Tensor, valid: int) -> torch.Tensor:
        return self.head(self.attention(self.embed(tokens), valid)).mean()


class Documents:
    """Documents cut into one part per rank; short ones leave the last ranks nothing but padding."""

    def __init__(self, ring: Ring, part: int = 8) -> None:
        self.ring, self.part = ring, part

    def batch(self, step: int) -> tuple[torch.Tensor, int]:
        length = self.part * (self.ring.size if step < 7 else self.ring.size - 1)
        valid = max(0, min(self.part, length - self.ring.rank * self.part))
        return torch.randn(self.part, 4), valid


def sync(model: nn.Module, group: dist.ProcessGroup) -> None:
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad, group=group)


def main() -> None:
    long = timedelta(minutes=30)
    dist.init_process_group("gloo", timeout=long)
    ring = Ring(dist.new_group(timeout=long, group_desc="context_parallel"))
    model, documents = LongContextModel(ring), Documents(ring)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 1000):
        time.sleep(0.2)
        loss = model(*documents.batch(step))
        optimizer.zero_grad()
        loss.backward()
        sync(model, dist.group.WORLD)
        optimizer.step()
        if ring.rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
