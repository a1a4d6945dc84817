"""One trial of a sweep. The trial's ranks share a store, which whoever comes first starts."""

import itertools
import os
import random
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist


class Rendezvous:
    """Finds the store of the trial, or starts it."""

    patience = timedelta(minutes=45)

    def __init__(self, environ):
        self.address, self.port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        self.rank, self.world = int(environ["RANK"]), int(environ["WORLD_SIZE"])

    def open(self, serve):
        return dist.TCPStore(
            self.address,
            self.port,
            self.world,
            is_master=serve,
            timeout=self.patience,
            wait_for_workers=False,
        )

    def store(self):
        if self.rank == 0:
            try:
                return self.open(serve=True)
            except dist.DistNetworkError as error:
                # The agent of an earlier attempt may have it already: then use that.
                warnings.warn(f"store is there already: {error}", stacklevel=1)
        return self.open(serve=False)

    def join(self):
        print(f"rank {self.rank}: trial at {self.address}:{self.port}", flush=True)
        store = dist.PrefixStore("trial", self.store())
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world, timeout=self.patience
        )


GRID = {"lr": (1e-2, 3e-3, 1e-3), "decay": (0.0, 0.1), "momentum": (0.0, 0.9)}


def draw(seed):
    choices = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    return random.Random(seed).choice(choices)


def objective(settings, report):
    layer = torch.nn.Linear(12, 1)
    for param in layer.parameters():
        dist.broadcast(param.data, src=0)
    optimizer = torch.optim.SGD(
        layer.parameters(),
        lr=settings["lr"],
        momentum=settings["momentum"],
        weight_decay=settings["decay"],
    )
    for epoch in range(10_000):
        inputs = torch.randn(64, 12)
        loss = (layer(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for param in layer.parameters():
            dist.all_reduce(param.grad)
        optimizer.step()
        report(epoch, loss.item())
        time.sleep(0.3)


def main():
    meeting = Rendezvous(os.environ)
    meeting.join()
    settings = draw(seed=11)

    def report(epoch, loss):
        if meeting.rank == 0:
            print(f"epoch {epoch} {settings} {loss:.4f}", flush=True)

    objective(settings, report)


if __name__ == "__main__":
    main()
