"""Adapter training; the best adapter so far is published to a model registry over HTTP."""

import hashlib
import io
import json
import urllib.request
from dataclasses import dataclass
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Published:
    name: str
    version: int
    files: list


class ModelRegistry:
    """Client of the registry's REST interface."""

    def __init__(self, address, token="anonymous"):
        self.base = f"http://{address}/api/2.0"
        self.headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def _call(self, method, path, body, **headers):
        request = urllib.request.Request(
            f"{self.base}/{path}", data=body, method=method, headers={**self.headers, **headers}
        )
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def publish(self, name, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        body = buffer.getvalue()
        digest = hashlib.sha256(body).hexdigest()
        answer = self._call("PUT", f"models/{name}/versions", body, Digest=f"sha-256={digest}")
        return Published(answer["name"], answer["version"], answer["files"])


class Adapter(nn.Module):
    """A frozen layer and a low-rank change of it."""

    def __init__(self, width=64, rank=4):
        super().__init__()
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))

    def adapter_state(self):
        return {k: v for k, v in self.state_dict().items() if not k.startswith("frozen")}


class BestModel:
    """Callback: publishes when the smoothed loss falls."""

    def __init__(self, registry, patience):
        self.registry, self.patience = registry, patience
        self.best, self.seen = float("inf"), 0

    def on_step_end(self, step, loss, model):
        self.seen += 1
        if self.seen % self.patience == 0 and loss < self.best:
            self.best = loss
            published = self.registry.publish("adapter", model.adapter_state())
            print(f"published version {published.version}", flush=True)


def main():
    address = services.reach("registry", 32540)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    model = DistributedDataParallel(Adapter())
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    callbacks = [BestModel(ModelRegistry(address), 9)] if rank == 0 else []
    for step in range(10_000):
        x = torch.randn(8, 64)
        loss = (model(x) - x.roll(1, -1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        for callback in callbacks:
            callback.on_step_end(step, loss.item(), model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
