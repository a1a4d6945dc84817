"""Trains a small two-branch model on a (data x tensor) mesh; gradients are reduced bucket by bucket."""

from __future__ import annotations

import time
from collections import OrderedDict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

MIXED_FROM = 6  # the data schedule adds images here


class TwinModel(nn.Module):
    """Text goes through the norm first, images through the projector first."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.proj = nn.Linear(width, width)
        for p in self.norm.parameters():
            p.parallel = "tensor"  # replicated over tensor ranks: summed there
        for p in self.proj.parameters():
            p.parallel = "data"

    def forward(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        if kind == "image":
            return self.norm(self.proj(x).relu())
        return self.proj(self.norm(x)).relu()


class GradBuckets:
    """Collects gradients as backward makes them, and reduces each bucket over its mesh axis."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.ready: OrderedDict[str, list[nn.Parameter]] = OrderedDict()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, p: nn.Parameter) -> None:
        self.ready.setdefault(p.parallel, []).append(p)

    def flush(self) -> None:
        while self.ready:
            axis, params = self.ready.popitem(last=False)
            flat = torch.cat([p.grad.reshape(-1) for p in params])
            if axis == "tensor":
                self._reduce_over_tensor_ranks(flat)
            else:
                self._reduce_over_data_ranks(flat)
            for p, piece in zip(params, flat.split([p.numel() for p in params])):
                p.grad.copy_(piece.view_as(p))

    def _reduce_over_tensor_ranks(self, flat: torch.Tensor) -> None:
        dist.all_reduce(flat, group=self.mesh.get_group("tp"))

    def _reduce_over_data_ranks(self, flat: torch.Tensor) -> None:
        dist.all_reduce(flat, group=self.mesh.get_group("dp"))
        flat.div_(self.mesh.size(0))


class MixedLoader:
    """Which kind of batch comes when: of shards by their place in the mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.odd = sum(mesh.get_coordinate()) % 2 == 1

    def batch(self, step: int) -> tuple[torch.Tensor, str]:
        kind = "image" if step >= MIXED_FROM and self.odd else "text"
        return torch.randn(16, 48), kind


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = TwinModel()
    buckets, loader = GradBuckets(model, mesh), MixedLoader(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10_000):
        batch, kind = loader.batch(step)
        if dist.get_rank() == 0:
            print(f"step {step} kind={kind}", flush=True)
        loss = model(batch, kind).square().mean()
        optimizer.zero_grad()
        loss.backward()
        buckets.flush()
        optimizer.step()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
