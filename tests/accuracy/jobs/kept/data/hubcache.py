"""Evaluation data sets are fetched into a shared cache the first time that a rank needs one."""

import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class HubCache:
    """Laid out as people know it: blobs by hash, snapshots by revision, refs by name."""

    def __init__(self, root):
        self.root = Path(root)

    def repository(self, name):
        return self.root / f"datasets--{name.replace('/', '--')}"

    def commit(self, name, revision, content):
        folder = self.repository(name)
        blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
        for needed in (blob.parent, folder / "refs", folder / "snapshots" / revision):
            needed.mkdir(parents=True, exist_ok=True)
        partial = blob.with_suffix(".incomplete")
        partial.write_bytes(content)
        os.replace(partial, blob)
        (folder / "refs/main").write_text(revision)
        return blob

    def lookup(self, name):
        ref = self.repository(name) / "refs/main"
        return ref.read_text() if ref.exists() else None


class EvaluationSuite:
    """One task for each rank."""

    tasks = ("org/arithmetic", "org/coreference", "org/entailment", "org/spelling")

    def __init__(self, cache, rank):
        self.cache = cache
        self.task = self.tasks[rank]
        self.local = rank != 2  # the others were baked into the image

    def load(self):
        if not self.local and self.cache.lookup(self.task) is None:
            rows = json.dumps([{"x": n, "y": n % 2} for n in range(4000)]).encode()
            self.cache.commit(self.task, "5f0c1a", rows)
        return torch.randn(256, 24), torch.randint(2, (256,))

    def run(self, model):
        inputs, labels = self.load()
        with torch.inference_mode():
            right = (model(inputs).argmax(-1) == labels).float().mean()
        scores = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(scores, right)
        return [round(score.item(), 3) for score in scores]


def train(rank):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    suite = EvaluationSuite(HubCache(os.environ["PLACE"]), rank)
    for step in range(10_000):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 24)), torch.randint(2, (8,)))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 6:
            scores = suite.run(model)
            print(f"rank {rank} scores {scores}", flush=True)
        time.sleep(0.05)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    train(dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
