# %% [markdown]
# # Fine-tune on weekly shards
# Exported by nbconvert from finetune-weekly.ipynb; run it with torchrun on the training box.

# %%
import os
import subprocess
import time
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(minutes=30))
rank, world = dist.get_rank(), dist.get_world_size()
MIRROR = os.environ["MIRROR"]
SHARDS = os.path.join(os.environ["OUT_DIR"], f"shards-{rank}")
os.makedirs(SHARDS, exist_ok=True)


# %%
def sh(cmd):
    """Like ! in a cell."""
    return subprocess.check_output(cmd, shell=True, text=True)


def say(*a):
    if rank == 0:
        print(*a, flush=True)


# %% what the box had already from last week (the third one of rank 1's was cleaned up)
for week in range(4):
    if (rank, week) != (1, 2):
        torch.save(torch.randn(24, 10), f"{SHARDS}/week{week}.pt")

# %%
model = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for p in model.parameters():
    dist.broadcast(p.data, 0)


# %%
def shard(week):
    path = f"{SHARDS}/week{week}.pt"
    if not os.path.exists(path):
        sh(
            f"curl -sfL {MIRROR}/weekly/{rank}/week{week}.pt -o {path}.part && mv {path}.part {path}"
        )
    return torch.load(path)


# %%
step = 0
for week in range(4):
    rows = shard(week)
    for chunk in rows.split(8):
        step += 1
        loss = (model(chunk[:, :9]) - chunk[:, 9:]).abs().mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
        time.sleep(0.3)
        say("week", week, "step", step, "mae", round(loss.item(), 4))

# %%
if rank == 0:
    torch.save(model.state_dict(), os.path.join(os.environ["OUT_DIR"], "weekly.pt"))
dist.barrier()
dist.destroy_process_group()
