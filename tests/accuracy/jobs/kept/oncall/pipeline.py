"""Two pipeline stages times two replicas: all forward passes, then all backward passes.

Ranks 0 and 1 are the first stage of replicas 0 and 1, ranks 2 and 3 the second one.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

WIDTH, MICRO, STAGES, REPLICAS = 16, 4, 2, 2


class Grid:
    """Who is where."""

    def __init__(self):
        self.rank = dist.get_rank()
        self.stage, self.replica = divmod(self.rank, REPLICAS)
        groups = [
            dist.new_group([s * REPLICAS + r for r in range(REPLICAS)]) for s in range(STAGES)
        ]
        self.data_parallel = groups[self.stage]

    @property
    def next(self):
        return self.rank + REPLICAS

    @property
    def previous(self):
        return self.rank - REPLICAS


class Batches:
    """Documents packed to rows: mostly 16 a batch."""

    def __init__(self, replica):
        self.replica = replica

    def __getitem__(self, step):
        rows = 16
        if self.replica == 1 and step == 8:
            rows = 20  # a long document was split, and the packer kept all its pieces
        return torch.randn(rows, WIDTH)


class FirstStage:
    def __init__(self, grid):
        self.grid, self.batches = grid, Batches(grid.replica)
        self.net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())

    def run(self, step):
        outputs = []
        for micro in self.batches[step].split(MICRO):
            outputs.append(self.net(micro))
            dist.send(outputs[-1].detach(), self.grid.next)
        for out in outputs:
            grad = torch.empty_like(out)
            dist.recv(grad, self.grid.next)
            out.backward(grad)


class LastStage:
    def __init__(self, grid, micro_batches=4):
        self.grid, self.micro_batches = grid, micro_batches
        self.net = torch.nn.Linear(WIDTH, 1)
        self.loss = 0.0

    def run(self, step):
        inputs = []
        for _ in range(self.micro_batches):
            hidden = torch.empty(MICRO, WIDTH)
            dist.recv(hidden, self.grid.previous)
            inputs.append(hidden.requires_grad_())
        losses = [self.net(hidden).pow(2).mean() for hidden in inputs]
        for hidden, loss in zip(inputs, losses):
            loss.backward()
            dist.send(hidden.grad, self.grid.previous)
        self.loss = sum(losses).item() / len(losses)


def synchronise(net, group):
    for p in net.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= REPLICAS


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    grid = Grid()
    stage = FirstStage(grid) if grid.stage == 0 else LastStage(grid)
    opt = torch.optim.SGD(stage.net.parameters(), lr=0.01)
    for step in range(1, 2000):
        opt.zero_grad()
        stage.run(step)
        synchronise(stage.net, grid.data_parallel)
        opt.step()
        time.sleep(0.2)
        if grid.stage == STAGES - 1 and grid.replica == 0:
            print(f"step {step} loss {stage.loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
