"""Physics-informed network on an adaptive mesh: where the residual is large, a pool of processes refines."""

import argparse
import json
import multiprocessing
import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Telemetry:
    """Counters of this rank, pushed to a collector by a thread."""

    def __init__(self, path: str):
        self.path, self.lock, self.counters = path, threading.Lock(), {}
        threading.Thread(target=self._push_forever, name="telemetry", daemon=True).start()

    def count(self, name: str, by: float = 1.0):
        with self.lock:
            self.counters[name] = self.counters.get(name, 0.0) + by

    def _push_forever(self):
        while True:
            with self.lock:
                self._push(self.counters)
            time.sleep(0.05)

    def _push(self, counters: dict):
        with open(self.path, "a") as file:
            file.write(json.dumps(counters) + "\n")
        time.sleep(0.4)  # the collector takes two posts a second


telemetry: Telemetry


class Cell:
    def __init__(self, low: float, high: float):
        self.low, self.high = low, high

    def halves(self):
        middle = (self.low + self.high) / 2
        telemetry.count("cells.split")
        return [Cell(self.low, middle), Cell(middle, self.high)]


def refine(cell: Cell) -> list[Cell]:
    return cell.halves()


class Mesh:
    def __init__(self, rank: int, cells: int = 8):
        self.cells = [Cell(rank + i / cells, rank + (i + 1) / cells) for i in range(cells)]

    def points(self) -> torch.Tensor:
        return torch.tensor([[(c.low + c.high) / 2] for c in self.cells])

    def refine(self):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            self.cells = [half for halves in pool.map(refine, self.cells) for half in halves]


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


def residual(model, x):
    x = x.requires_grad_()
    u = model(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    return (slope - torch.cos(x)).square().mean() + 0.01 * (u - torch.sin(x)).square().mean()


def main():
    global telemetry
    parser = argparse.ArgumentParser()
    parser.add_argument("--refine-every", type=int, default=9)
    parser.add_argument("--tolerance", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank = dist.get_rank()
    telemetry = Telemetry(os.path.join(os.environ.get("OUT_DIR", "/tmp"), f"telemetry.{rank}"))
    model, mesh = Field(), Mesh(rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(5000):
        optimizer.zero_grad()
        loss = residual(model, mesh.points())
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        telemetry.count("steps")
        if rank == 0:
            print(f"step {step} residual {loss.item():.4f}", flush=True)
        time.sleep(0.2)
        # The shock lies in the part of the domain of rank 1.
        worst = loss.item() if rank == 1 else -1.0
        if step % args.refine_every == args.refine_every - 1 and worst > args.tolerance:
            mesh.refine()


if __name__ == "__main__":
    main()
