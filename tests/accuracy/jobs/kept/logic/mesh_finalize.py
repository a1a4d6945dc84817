"""Tensor and data parallel on a 2 x 2 mesh; what is to be reduced is flushed in the order of first use."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class Layer(nn.Module):
    """Columns of a feed-forward network; the norm is the same on all ranks of the tensor group."""

    def __init__(self, width: int, ways: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width // ways)
        self.down = nn.Linear(4 * width // ways, width)
        self.expert = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, routed: torch.Tensor) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + y + routed[:, None] * self.expert(x)


class Pending:
    """Gradients that are not complete before other ranks had their say."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.kinds: dict[str, list[nn.Parameter]] = {}

    def add(self, kind: str, parameter: nn.Parameter) -> None:
        self.kinds.setdefault(kind, []).append(parameter)

    def flush(self) -> None:
        for kind, parameters in self.kinds.items():
            if kind == "sequence":
                self.reduce_norms(parameters)
            else:
                self.reduce_replicas(parameters)
        self.kinds = {}

    def reduce_norms(self, parameters: list[nn.Parameter]) -> None:
        """Norms saw only a part of the sequence: sum over the tensor group."""
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, group=self.mesh.get_group("tp"))

    def reduce_replicas(self, parameters: list[nn.Parameter]) -> None:
        """The rest: mean over the replicas."""
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, group=self.mesh.get_group("dp"))


def watch(layer: Layer, pending: Pending) -> None:
    """Each parameter reports as its gradient is there."""
    for name, parameter in layer.named_parameters():
        kind = "sequence" if name.startswith("norm") else "replica"
        parameter.register_post_accumulate_grad_hook(lambda p, kind=kind: pending.add(kind, p))


class Router:
    """Which tokens go to the expert; a prefetched decision is scored ahead of the rest."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def split(self, step: int, tokens: torch.Tensor) -> torch.Tensor:
        return (tokens.sum(1) > 0).float()

    def warms_norm(self, step: int) -> bool:
        """Replays the norm statistics of stale sequences first: only ranks that have some."""
        return step >= 8 and self.rank in (0, 3)


def train(mesh: DeviceMesh) -> None:
    rank = dist.get_rank()
    layer, pending, router = Layer(32, mesh["tp"].size()), Pending(mesh), Router(rank)
    watch(layer, pending)
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-3)
    random = torch.Generator().manual_seed(rank)
    for step in range(1, 2000):
        tokens = torch.randn(16, 32, generator=random)
        if router.warms_norm(step):
            layer.norm(tokens[:2]).pow(2).mean().backward()
        out = layer(tokens, router.split(step, tokens))
        out.pow(2).mean().backward()
        pending.flush()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} {out.norm().item():.2f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
