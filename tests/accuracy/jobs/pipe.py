"""Pipeline parallel training: micro-batches travel down the stages, gradients travel back."""

import sys
import time

import torch
import torch.distributed as dist

SCHEDULE = sys.argv[1] if len(sys.argv) > 1 else "gpipe"
MICROBATCHES = 4


class Stage:
    def __init__(self):
        self.index, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.layer = torch.nn.Linear(8, 8)
        self.stash = []

    def recv_activation(self):
        x = torch.empty(2, 8)
        dist.recv(x, src=self.index - 1)
        return x.requires_grad_()

    def forward_one(self, iteration, micro):
        x = self.read_sample(iteration, micro) if self.index == 0 else self.recv_activation()
        y = self.layer(x)
        self.stash.append((x, y))
        if self.index < self.last:
            dist.send(y.detach(), dst=self.index + 1)

    def backward_one(self):
        x, y = self.stash.pop(0)
        if self.index == self.last:
            y.sum().backward()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, src=self.index + 1)
            y.backward(grad)
        if self.index > 0:
            dist.send(x.grad, dst=self.index - 1)

    def read_sample(self, iteration, micro):
        if SCHEDULE == "source-dry" and iteration == 4 and micro == 2:
            self.wait_for_more_data()
        return torch.randn(2, 8, requires_grad=True)

    def wait_for_more_data(self):
        print("no new shard yet", flush=True)
        while True:
            time.sleep(30)

    def swap_boundary(self):
        """Neighbours tell each other their statistics; both of a pair listen first."""
        peer = self.index ^ 1
        theirs = torch.empty(8)
        if peer <= self.last:
            dist.recv(theirs, src=peer)
            dist.send(self.layer.bias.detach(), dst=peer)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    stage = Stage()
    for iteration in range(10**9):
        count = MICROBATCHES
        if SCHEDULE == "short-stage" and iteration == 5 and stage.index == 1:
            count -= 1
        for micro in range(count):
            stage.forward_one(iteration, micro)
        for _ in range(count):
            stage.backward_one()
        stage.layer.zero_grad()
        if SCHEDULE == "short-stage":
            dist.barrier()
        if SCHEDULE == "both-listen" and iteration == 4:
            stage.swap_boundary()
        if stage.index == stage.last:
            print(f"iteration {iteration} done", flush=True)
        time.sleep(0.05)


main()
