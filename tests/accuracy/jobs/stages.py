"""Two pipelines of two stages: in one of them both stages send, the other waits to reduce."""

from __future__ import annotations

import torch
import torch.distributed as dist

SHAPE = (4, 32)


class Stage:
    """One stage, with its neighbour two ranks away."""

    def __init__(self, rank: int) -> None:
        self.first, self.peer = rank < 2, (rank + 2) % 4

    def forward(self) -> None:
        if self.first:
            dist.send(torch.randn(SHAPE), dst=self.peer)
        else:
            dist.recv(torch.empty(SHAPE), src=self.peer)

    def backward(self) -> None:
        if self.first:
            dist.recv(torch.empty(SHAPE), src=self.peer)
        else:
            dist.send(torch.randn(SHAPE), dst=self.peer)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage = Stage(rank)
    for step in range(20):
        stage.forward()
        if step == 8 and rank == 1:
            stage.forward()  # one more in flight, which the next stage knows nothing of
        stage.backward()
        dist.all_reduce(torch.ones(8), group=groups[rank // 2])
        if rank == 0:
            print("step", step, flush=True)


main()
