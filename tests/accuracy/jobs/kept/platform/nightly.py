"""A nightly run, in phases that take their time while the rest of the ranks waits.

nightly.py evaluate   # rank 0 scores a long list of held-out samples
nightly.py upload     # rank 0 puts parts of a model into a store with a slow line
nightly.py prepare    # rank 0 cleans and counts a corpus with a pool of processes
nightly.py save       # every rank writes its shard to a slow disk, file by file
"""

import hashlib
import multiprocessing
import os
import re
import socket
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

PART = 256 << 10


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, steps + 1):
        inputs = torch.randn(16, 64)
        loss = (model(inputs) - inputs.tanh()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        time.sleep(0.02)


def evaluate(model: nn.Module) -> float:
    """Scores by finite differences, which need many passes for each sample."""
    total, module = 0.0, model.module.eval()
    with torch.inference_mode():
        for sample in range(20_000):
            base = torch.randn(1, 64)
            score = module(base)
            for axis in range(64):
                moved = base.clone()
                moved[0, axis] += 1e-3
                total += (module(moved) - score).abs().max().item()
            if sample % 400 == 0:
                print(f"scored {sample}", flush=True)
    return total


class Store:
    """A store of objects at the end of a slow line: it reads 150 kB/s."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        multiprocessing.get_context("fork").Process(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            client, _ = self.listener.accept()
            digest, left = hashlib.md5(), PART
            while left and (piece := client.recv(min(15_000, left))):
                digest.update(piece)
                left -= len(piece)
                time.sleep(0.1)
            client.sendall(digest.hexdigest().encode())

    def put(self, part: bytes) -> str:
        with socket.create_connection(self.listener.getsockname()) as line:
            line.sendall(part)
            return line.recv(32).decode()


def upload(model: nn.Module) -> None:
    store, weights = Store(), os.urandom(64 * PART)
    for offset in range(0, 60 * 64 * PART, PART):
        tag = store.put(weights[offset % len(weights) :][:PART])
        print(f"part {offset // PART} is there: {tag}", flush=True)


def clean(number: int) -> Counter:
    """Words of one document, which is long."""
    words = (f"Word{(number * 31 + at) % 977},  <b>x{at % 13}</b>!" for at in range(30_000))
    text = re.sub(r"<[^>]+>", " ", " ".join(words)).lower()
    return Counter(re.findall(r"[a-z]+\d+", text))


def prepare(model: nn.Module) -> None:
    counts: Counter = Counter()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for number, found in enumerate(pool.imap_unordered(clean, range(100_000))):
            counts += found
            if number % 50 == 0:
                print(f"{number} documents, {len(counts)} words", flush=True)


def save(model: nn.Module) -> None:
    """The state of an optimizer is many times the model, in files of two megabytes."""
    folder = Path(os.environ["PLACE"], f"shard-{dist.get_rank()}")
    folder.mkdir()
    for number in range(10_000):
        torch.save({"exp_avg": torch.randn(1 << 19)}, folder / f"state-{number % 4}.pt")
        if dist.get_rank() == 0:
            print(f"file {number} written", flush=True)


def main() -> None:
    phase = {"evaluate": evaluate, "upload": upload, "prepare": prepare, "save": save}[sys.argv[1]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=6))
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    train(model, 40)
    if dist.get_rank() == 0 or phase is save:
        print(f"{sys.argv[1]} begins", flush=True)
        phase(model)
    dist.barrier()


if __name__ == "__main__":
    main()
