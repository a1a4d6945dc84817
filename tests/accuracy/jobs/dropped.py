"""Pipelines of which a stage drops a micro-batch: dropped.py waves|posted.

`waves`: all forwards, then all backwards, by send and recv. `posted`: one forward, one backward,
by operations that are posted together and waited for.
"""

from __future__ import annotations

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

SHAPE, COUNT = (64,), 6


class Link:
    """Activations to the next stage, gradients to the previous one."""

    def __init__(self, rank: int, world: int) -> None:
        self.prev = rank - 1 if rank else None
        self.next = rank + 1 if rank < world - 1 else None

    def take_input(self) -> torch.Tensor:
        x = torch.ones(SHAPE)
        if self.prev is not None:
            dist.recv(x, src=self.prev)
        return x

    def hand_on(self, y: torch.Tensor) -> None:
        if self.next is not None:
            dist.send(y, dst=self.next)

    def take_gradient(self) -> torch.Tensor:
        grad = torch.ones(SHAPE)
        if self.next is not None:
            dist.recv(grad, src=self.next)
        return grad

    def hand_back(self, grad: torch.Tensor) -> None:
        if self.prev is not None:
            dist.send(grad, dst=self.prev)


def waves(rank: int, world: int, step: int) -> None:
    """Stage 1 drops a micro-batch of step 6: the gradient of 2 and the activation of 1 are due."""
    link, kept = Link(rank, world), 0
    for index in range(COUNT):
        y = link.take_input() * 2
        if (rank, step, index) == (1, 6, 3):
            print("dropped a micro-batch", flush=True)
            continue
        link.hand_on(y)
        kept += 1
    for _ in range(kept):
        link.hand_back(link.take_gradient())


def exchange(to: int | None, data: torch.Tensor | None, source: int | None) -> torch.Tensor:
    """Post what there is to send and to receive, and wait for both."""
    got = torch.ones(SHAPE)
    ops = [] if to is None or data is None else [dist.P2POp(dist.isend, data, to)]
    ops += [] if source is None else [dist.P2POp(dist.irecv, got, source)]
    for request in dist.batch_isend_irecv(ops) if ops else ():
        request.wait()
    return got


def recv_forward(link: Link) -> torch.Tensor:
    return exchange(None, None, link.prev)


def send_forward(link: Link, y: torch.Tensor) -> None:
    exchange(link.next, y, None)


def send_forward_recv_backward(link: Link, y: torch.Tensor) -> torch.Tensor:
    return exchange(link.next, y, link.next)


def send_backward_recv_forward(link: Link, grad: torch.Tensor) -> torch.Tensor:
    return exchange(link.prev, grad, link.prev)


def recv_backward(link: Link) -> torch.Tensor:
    return exchange(None, None, link.next)


def send_backward(link: Link, grad: torch.Tensor) -> None:
    exchange(link.prev, grad, None)


def posted(rank: int, world: int, step: int) -> None:
    """Stage 2 drops a micro-batch while it warms up in step 6."""
    link, warm = Link(rank, world), world - rank - 1
    for _ in range(warm):
        y = recv_forward(link) * 2
        if (rank, step) == (2, 6):
            print("dropped a micro-batch", flush=True)
            continue
        send_forward(link, y)
    x = recv_forward(link)
    for index in range(COUNT - warm):
        grad = send_forward_recv_backward(link, x * 2)
        if index == COUNT - warm - 1:
            send_backward(link, grad)
        else:
            x = send_backward_recv_forward(link, grad)
    for _ in range(warm):
        send_backward(link, recv_backward(link))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    schedule = {"waves": waves, "posted": posted}[sys.argv[1]]
    dist.barrier()
    for step in range(100_000):
        schedule(rank, world, step)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
