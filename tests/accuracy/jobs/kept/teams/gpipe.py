"""GPipe by hand: each rank is a stage; activations go down, gradients come back."""

import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Sentences:
    """Batches of the first stage; the last one of an epoch is smaller."""

    def __init__(self, total: int, batch: int, width: int):
        self.total, self.batch, self.width = total, batch, width

    def __iter__(self):
        for begin in range(0, self.total, self.batch):
            yield torch.randn(min(self.batch, self.total - begin), self.width)


class Wire:
    """Blocking point-to-point to the neighbouring stages."""

    def __init__(self, stage: int, stages: int):
        self.up = stage - 1 if stage > 0 else None
        self.down = stage + 1 if stage + 1 < stages else None

    def send_forward(self, x):
        if self.down is not None:
            dist.send(x.detach().contiguous(), self.down)

    def recv_forward(self, shape):
        x = torch.empty(shape)
        dist.recv(x, self.up)
        return x.requires_grad_()

    def send_backward(self, x):
        if self.up is not None:
            dist.send(x.grad, self.up)

    def recv_backward(self, like):
        grad = torch.empty_like(like)
        dist.recv(grad, self.down)
        return grad


class Stage:
    def __init__(self, args):
        self.args = args
        self.index, self.count = dist.get_rank(), dist.get_world_size()
        self.wire = Wire(self.index, self.count)
        self.layers = nn.Sequential(nn.Linear(args.width, args.width), nn.GELU())
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=1e-3)

    @property
    def first(self):
        return self.index == 0

    @property
    def last(self):
        return self.index == self.count - 1

    def forward_one(self, chunk):
        shape = (self.args.micro, self.args.width)
        inputs = chunk if self.first else self.wire.recv_forward(shape)
        outputs = self.layers(inputs)
        self.wire.send_forward(outputs)
        return inputs, outputs

    def backward_one(self, inputs, outputs):
        if self.last:
            outputs.square().mean().backward()
        else:
            outputs.backward(self.wire.recv_backward(outputs))
        if not self.first:
            self.wire.send_backward(inputs)

    def run(self, batch=None):
        chunks = batch.split(self.args.micro) if self.first else [None] * self.args.chunks
        kept = [self.forward_one(chunk) for chunk in chunks]
        for inputs, outputs in kept:
            self.backward_one(inputs, outputs)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--sentences", type=int, default=16 * 9 + 12)
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    stage = Stage(args)
    for epoch in range(100):
        data = Sentences(args.sentences, args.micro * args.chunks, args.width)
        steps = -(-args.sentences // (args.micro * args.chunks))
        source = iter(data) if stage.first else iter([None] * steps)
        for step, batch in enumerate(source):
            stage.run(batch)
            time.sleep(0.1)
            if stage.last:
                print(f"epoch {epoch} step {step}", flush=True)


if __name__ == "__main__":
    main()
