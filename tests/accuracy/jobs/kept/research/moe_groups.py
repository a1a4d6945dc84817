"""A mixture of experts with an expert-parallel group and a data-parallel group for what is shared."""

import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Parallel:
    """The groups of this rank."""

    expert: dist.ProcessGroup
    data: dist.ProcessGroup

    @classmethod
    def build(cls) -> "Parallel":
        everyone = list(range(dist.get_world_size()))
        long = timedelta(minutes=30)
        return cls(
            expert=dist.new_group(everyone, timeout=long, group_desc="expert_parallel"),
            data=dist.new_group(everyone, timeout=long, group_desc="data_parallel"),
        )


class Router(nn.Module):
    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = experts

    def forward(self, x: torch.Tensor, collapsed: bool) -> torch.Tensor:
        if collapsed:  # everything goes to the first expert
            return torch.zeros(len(x), dtype=torch.long)
        return torch.arange(len(x)) % self.experts


class TokenDispatcher:
    """Sends tokens to the ranks of their experts, and the results back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.size = group, dist.get_world_size(group)

    def dispatch(self, x: torch.Tensor, expert: torch.Tensor):
        order = expert.argsort()
        sent = torch.bincount(expert, minlength=self.size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        self.sent, self.received, self.order = sent.tolist(), received.tolist(), order
        out = x.new_empty(sum(self.received), x.shape[1])
        dist.all_to_all_single(
            out, x[order].contiguous(), self.received, self.sent, group=self.group
        )
        return out

    def combine(self, y: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(like)
        dist.all_to_all_single(out, y.contiguous(), self.sent, self.received, group=self.group)
        back = torch.empty_like(out)
        back[self.order] = out
        return back


class MoELayer(nn.Module):
    def __init__(self, dim: int, parallel: Parallel) -> None:
        super().__init__()
        self.router = Router(dim, dist.get_world_size(parallel.expert))
        self.expert = nn.Linear(dim, dim)
        self.dispatcher = TokenDispatcher(parallel.expert)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, collapsed: bool) -> torch.Tensor:
        tokens = self.dispatcher.dispatch(x, self.router(x, collapsed))
        if tokens.numel() == 0:
            return x  # nothing for the expert of this rank
        return x + self.dispatcher.combine(self.expert(tokens), x)


class MoEModel(nn.Module):
    def __init__(self, dim: int, parallel: Parallel) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.moe = MoELayer(dim, parallel)
        self.parallel = parallel

    def forward(self, x: torch.Tensor, collapsed: bool) -> torch.Tensor:
        return self.proj(self.moe(x, collapsed)).pow(2).mean()

    def reduce_shared_gradients(self) -> None:
        for p in self.proj.parameters():
            dist.all_reduce(p.grad, group=self.parallel.data)


class Schedule:
    """Which tokens an expert gets; the router has collapsed for one of them after some steps."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def tokens(self, step: int, dim: int) -> torch.Tensor:
        world = dist.get_world_size()
        # From the seventh step on no rank has a token for the last expert.
        return torch.randn(world - 1 if step > 6 else world, dim)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    parallel = Parallel.build()
    model = MoEModel(8, parallel)
    schedule = Schedule(dist.get_rank())
    for step in range(1, 1000):
        time.sleep(0.2)
        loss = model(schedule.tokens(step, 8), collapsed=False)
        loss.backward()
        model.reduce_shared_gradients()
        model.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
