"""Pipeline parallelism by hand: stages with send and recv, and a reader thread before the first stage."""

import json
import os
import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

MICRO, ROWS, WIDTH = 3, 4, 8


def write_corpus(path: str) -> None:
    with open(path, "w") as file:
        for i in range(60):
            file.write(
                json.dumps(
                    {
                        "id": i,
                        "x": [[(i * 7 + a * b) % 5 / 5 for b in range(WIDTH)] for a in range(ROWS)],
                    }
                )
                + "\n"
            )
        file.write('{"id": 60, "x": [[0.2, 0.4, ')  # the copy was cut off here


class Reader(threading.Thread):
    """Parses lines ahead of the training."""

    def __init__(self, path: str) -> None:
        super().__init__(name="reader", daemon=True)
        self.path, self.items = path, queue.Queue(maxsize=8)

    def run(self) -> None:
        while True:
            with open(self.path) as file:
                for line in file:
                    self.items.put(torch.tensor(json.loads(line)["x"]))

    def __iter__(self):
        while True:
            yield self.items.get()


class Channel:
    """To and from the neighbours in the pipeline."""

    def __init__(self, rank: int, world: int) -> None:
        self.before = rank - 1 if rank else None
        self.behind = rank + 1 if rank + 1 < world else None

    def receive_activation(self):
        x = torch.empty(ROWS, WIDTH)
        dist.recv(x, src=self.before)
        return x.requires_grad_()

    def send_activation(self, y) -> None:
        dist.send(y.detach(), dst=self.behind)

    def receive_gradient(self):
        g = torch.empty(ROWS, WIDTH)
        dist.recv(g, src=self.behind)
        return g

    def send_gradient(self, g) -> None:
        dist.send(g, dst=self.before)


class Stage:
    def __init__(self, rank: int, world: int, source) -> None:
        self.channel, self.source = Channel(rank, world), source
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.01)

    def forward(self):
        x = next(self.source) if self.channel.before is None else self.channel.receive_activation()
        y = self.layer(x)
        if self.channel.behind is not None:
            self.channel.send_activation(y)
        return x, y

    def backward(self, x, y) -> None:
        if self.channel.behind is None:
            (y.pow(2).mean() / MICRO).backward()
        else:
            y.backward(self.channel.receive_gradient())
        if self.channel.before is not None:
            self.channel.send_gradient(x.grad)

    def step(self) -> None:
        kept = [self.forward() for _ in range(MICRO)]
        for x, y in reversed(kept):
            self.backward(x, y)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    source = None
    if rank == 0:
        path = os.path.join(os.environ["OUT_DIR"], "corpus.jsonl")
        write_corpus(path)
        reader = Reader(path)
        reader.start()
        source = iter(reader)
    stage = Stage(rank, world, source)
    for i in range(100_000):
        stage.step()
        if rank == world - 1:
            print(f"step {i}", flush=True)
        time.sleep(0.15)


if __name__ == "__main__":
    main()
