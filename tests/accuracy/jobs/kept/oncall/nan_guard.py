"""Character model, single file research script. Launch: torchrun --nproc-per-node=N nan_guard.py"""

import math
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

VOCAB, CTX, BATCH = 64, 16, 8
EVAL_EVERY = 4
# (rank, step) of records whose log-frequency weights were exported as 0 / 0
BROKEN = {(1, 7)}


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(VOCAB, 32)
        self.rnn = torch.nn.GRU(32, 32, batch_first=True)
        self.out = torch.nn.Linear(32, VOCAB)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def get_batch(rank, step, gen):
    x = torch.randint(0, VOCAB, (BATCH, CTX + 1), generator=gen)
    weight = torch.ones(BATCH)
    if (rank, step) in BROKEN:
        weight[3] = float("nan")
    return x[:, :-1], x[:, 1:], weight


def weighted_loss(model, batch):
    x, y, weight = batch
    logits = model(x)
    per_token = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
    return (per_token.mean(1) * weight).mean()


def average_gradients(params, world):
    """One flat all_reduce, so that small tensors do not cost a round each."""
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


@torch.no_grad()
def evaluate(model, rank, world, gen):
    losses = [weighted_loss(model, get_batch(rank, -1, gen)) for _ in range(3)]
    mine = torch.stack(losses).mean().reshape(1)
    everyone = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(everyone, mine)
    return torch.cat(everyone).mean().item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Tiny()
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=3e-3)
    gen = torch.Generator().manual_seed(17 + rank)
    skipped = 0
    for step in range(1, 400):
        began = time.time()
        loss = weighted_loss(model, get_batch(rank, step, gen))
        if not math.isfinite(loss.item()):
            skipped += 1
            print(f"[{rank}] non-finite loss, batch left out ({skipped} so far)")
            continue
        opt.zero_grad()
        loss.backward()
        average_gradients(params, world)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        time.sleep(0.25)
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f} {time.time() - began:.2f}s")
        if step % EVAL_EVERY == 0:
            val = evaluate(model, rank, world, gen)
            if rank == 0:
                print(f"eval after {step}: {val:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
