"""Character-level language model, one file, configuration by key=value on the command line.

torchrun gpt.py [trouble=NAME] [max_iters=N]
"""

import os
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

config = {"trouble": "none", "max_iters": "100000", "grad_accum": "2", "block": "16", "width": "32"}
config.update(arg.split("=", 1) for arg in sys.argv[1:])
trouble, max_iters = config["trouble"], int(config["max_iters"])
accum, block, width = (int(config[key]) for key in ("grad_accum", "block", "width"))

dist.init_process_group(backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()
master_process = rank == 0
torch.manual_seed(1337 + rank)
out_dir = os.environ.get("OUT_DIR", ".")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        return x + self.mlp(self.ln(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(65, width)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(width, 65)

    def forward(self, idx, targets):
        x = self.wte(idx)
        for layer in self.h:
            x = layer(x)
        return F.cross_entropy(self.head(x).view(-1, 65), targets.view(-1))


def get_batch():
    data = torch.randint(0, 65, (8, block + 1))
    return data[:, :-1], data[:, 1:].contiguous()


@torch.no_grad()
def estimate_loss(iters):
    losses = torch.zeros(iters)
    for k in range(iters):
        losses[k] = sum(raw_model(*get_batch()).item() for _ in range(20)) / 20
        time.sleep(0.005)
    return losses.mean()


def save_checkpoint():
    """Write the weights piece by piece, as slowly as a busy file server takes them."""
    with open(os.path.join(out_dir, "ckpt.pt"), "wb") as file:
        for piece in range(4000):
            file.write(os.urandom(1 << 16))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.05)
            if piece % 256 == 255:
                file.seek(0)


def save_all():
    """Weights and both moments of the optimizer, at once, and safely on disk."""
    state = {f"h.{n}": torch.rand(1 << 20) for n in range(12)}
    path = os.path.join(os.environ["PLACE"], "ckpt.pt")
    for attempt in range(100):
        with open(path, "wb") as file:
            torch.save({"model": state, "attempt": attempt}, file)
            os.fsync(file.fileno())


raw_model = GPT()
step_model = torch.compile(raw_model) if trouble == "compile" and rank == 1 else raw_model
model = DDP(step_model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
iter_num = 0
while iter_num < max_iters:
    if master_process:
        print(f"iter {iter_num}", flush=True)
    if iter_num == 5:
        if trouble == "eval" and master_process:
            print("evaluating on the whole of the validation set", flush=True)
            estimate_loss(5000)
        if trouble in ("checkpoint", "slow-disk"):
            if master_process:
                print("saving checkpoint", flush=True)
                save_checkpoint() if trouble == "checkpoint" else save_all()
            dist.barrier()
    if trouble == "bad-batch" and iter_num == 5 and rank == 1:
        print(f"rank {rank}: token out of range, skipping this batch", flush=True)
        iter_num += 1
        continue
    for micro in range(accum):
        last = micro == accum - 1
        with nullcontext() if last else model.no_sync():
            loss = model(*get_batch()) / accum
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    time.sleep(0.05)
dist.barrier()
if master_process:
    save_checkpoint()
dist.destroy_process_group()
