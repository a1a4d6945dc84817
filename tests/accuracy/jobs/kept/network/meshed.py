"""Data-parallel training of a small autoencoder, gradients in two flat buckets."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


class Buckets:
    """Gradients by layer halves, so that the first can be sent while the second is made."""

    def __init__(self, modules):
        self.buckets = [list(module.parameters()) for module in modules]
        self.works = []

    def launch(self):
        for params in self.buckets:
            flat = _flatten_dense_tensors([param.grad for param in params])
            self.works.append((params, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for params, flat, work in self.works:
            work.wait()
            flat.div_(dist.get_world_size())
            grads = [param.grad for param in params]
            for grad, mean in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
                grad.copy_(mean)
        self.works.clear()


def halves(width, code):
    torch.manual_seed(9)
    encoder = torch.nn.Sequential(torch.nn.Linear(width, 40), torch.nn.ELU())
    encoder.append(torch.nn.Linear(40, code))
    decoder = torch.nn.Sequential(torch.nn.Linear(code, 40), torch.nn.ELU())
    decoder.append(torch.nn.Linear(40, width))
    return encoder, decoder


def batches(width, rank):
    source = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randn(24, width, generator=source).cumsum(dim=1)


def run():
    rank = dist.get_rank()
    encoder, decoder = halves(width=30, code=5)
    buckets = Buckets((decoder, encoder))
    params = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.SGD(params, lr=1e-3, momentum=0.9)
    for step, batch in enumerate(batches(30, rank)):
        loss = (decoder(encoder(batch)) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        buckets.launch()
        buckets.finish()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.25)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    print(f"rank {dist.get_rank()} pid {os.getpid()}", flush=True)
    run()
