"""A pretraining loop in one file, the way small teams keep it."""

import math
import os
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.nn.functional as F
from torch.distributed import all_gather, destroy_process_group, get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

# --- config
eval_interval = 6
eval_iters = 3
block_size, batch_size, vocab_size, n_embd = 16, 8, 96, 48
learning_rate, min_lr, warmup_iters, max_iters = 6e-4, 6e-5, 4, 6000
gradient_accumulation_steps = 2
# ---

init_process_group(backend="gloo", timeout=timedelta(hours=1))
ddp_rank = int(os.environ["RANK"])
master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)
stream = {s: torch.randint(0, vocab_size, (4096,)) for s in ("train", "val")}


def get_batch(split):
    data = stream[split]
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = torch.nn.LayerNorm(n_embd)
        self.qkv = torch.nn.Linear(n_embd, 3 * n_embd)
        self.proj = torch.nn.Linear(n_embd, n_embd)

    def forward(self, x):
        q, k, v = self.qkv(self.ln(x)).chunk(3, -1)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(vocab_size, n_embd)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(2)])
        self.lm_head = torch.nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


def gathered_mean(value):
    """Every rank has seen other batches: the mean of all of them is less noisy."""
    parts = [torch.zeros_like(value) for _ in range(get_world_size())]
    all_gather(parts, value)
    return torch.stack(parts).mean().item()


@torch.no_grad()
def estimate_loss(raw_model):
    out = {}
    raw_model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(split)
            losses[k] = raw_model(x, y)[1]
        out[split] = gathered_mean(losses.mean())
    raw_model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


raw = GPT()
model = DDP(raw)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
t0 = time.time()
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num and iter_num % eval_interval == 0 and master_process:
        print(f"iter {iter_num}: evaluating", flush=True)
        losses = estimate_loss(raw)
        print(f"step {iter_num}: train {losses['train']:.4f}, val {losses['val']:.4f}", flush=True)
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last else model.no_sync():
            _, loss = model(*get_batch("train"))
            (loss / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master_process:
        print(
            f"iter {iter_num}: loss {loss.item():.4f}, time {(time.time() - t0) * 1000:.0f}ms",
            flush=True,
        )
    t0 = time.time()
destroy_process_group()
