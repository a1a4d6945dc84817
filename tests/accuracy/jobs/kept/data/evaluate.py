"""Started by torch.multiprocessing; rank 0 alone evaluates every few steps, the others wait."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class CharModel(nn.Module):
    def __init__(self, vocabulary=96, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, state=None):
        out, state = self.rnn(self.embed(tokens), state)
        return self.head(out), state


@torch.no_grad()
def generate(model, prompt, length):
    tokens, state = prompt, None
    for _ in range(length):
        logits, state = model(tokens[:, -1:], state)
        tokens = torch.cat([tokens, logits[:, -1].softmax(-1).multinomial(1)], 1)
    return tokens


class Evaluation:
    """Writes continuations for some seconds, and scores them."""

    def __init__(self, seconds):
        self.seconds = seconds

    def run(self, model):
        model.eval()
        began, scores = time.monotonic(), []
        while time.monotonic() - began < self.seconds:
            tokens = generate(model, torch.randint(96, (4, 1)), 64)
            scores.append(tokens.float().std().item())
            time.sleep(0.05)
        model.train()
        return sum(scores) / len(scores)


def worker(rank, world, port):
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(minutes=30))
    torch.manual_seed(rank)
    model = DistributedDataParallel(CharModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    evaluation = Evaluation(14)
    for step in range(100_000):
        tokens = torch.randint(96, (8, 33))
        logits, _ = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.3)
        if step % 6 == 5:
            if rank == 0:
                print(f"step {step} score {evaluation.run(model.module):.3f}", flush=True)
            dist.barrier()


if __name__ == "__main__":
    mp.spawn(worker, args=(3, os.environ["MASTER_PORT"]), nprocs=3)
