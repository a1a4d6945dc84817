"""Trains and uploads snapshots in the background, with a pool of threads that tries again and again."""

import concurrent.futures
import io
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class ObjectStore:
    """A bucket on the cluster's gateway. Nobody listens there any more."""

    address = ("127.0.0.1", 37499)

    def put(self, key, data):
        with socket.create_connection(self.address, timeout=3) as connection:
            connection.sendall(f"PUT {key} {len(data)}\r\n".encode() + data)


def with_retries(call, *args, first=0.5, most=20.0):
    """Until it works: an upload must not be lost."""
    pause = first
    while True:
        try:
            return call(*args)
        except OSError:
            time.sleep(pause)
            pause = min(2 * pause, most)


class Snapshots:
    """Snapshots of every rank's own state, uploaded while the training goes on."""

    def __init__(self, rank, every):
        self.rank, self.every, self.store = rank, every, ObjectStore()
        self.pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="uploader")
        self.pending = []

    def maybe(self, step, model, optimizer):
        if step % self.every:
            return
        buffer = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        key = f"run/rank{self.rank}/{step}"
        self.pending.append(self.pool.submit(with_retries, self.store.put, key, buffer.getvalue()))


class Vocabulary:
    def __init__(self, words):
        self.index = {w: i for i, w in enumerate(words)}

    def encode(self, line):
        return torch.tensor([self.index[w] for w in line.split()])


class Lines:
    """Text of this rank; in one place there is a word that no vocabulary has."""

    WORDS = "the cat sat on a mat and saw one dog run far".split()

    def __init__(self, rank):
        self.rank, self.generator = rank, torch.Generator().manual_seed(rank)

    def __call__(self, step):
        picked = torch.randint(0, len(self.WORDS), (20,), generator=self.generator).tolist()
        words = [self.WORDS[i] for i in picked]
        if self.rank == 2 and step == 9:
            words[4] = "Katze"
        return " ".join(words)


def train(rank):
    lines, vocabulary = Lines(rank), Vocabulary(Lines.WORDS)
    model = torch.nn.Sequential(torch.nn.Embedding(12, 16), torch.nn.Linear(16, 12))
    optimizer = torch.optim.Adam(model.parameters())
    snapshots = Snapshots(rank, every=4)
    for step in range(100_000):
        ids = vocabulary.encode(lines(step))
        loss = torch.nn.functional.cross_entropy(model(ids[:-1]), ids[1:])
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
        snapshots.maybe(step, model, optimizer)
        time.sleep(0.15)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    train(dist.get_rank())
    dist.destroy_process_group()
