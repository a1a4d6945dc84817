"""Image classification on sharded weights, with a data module; by torchrun or its own spawn.

vision.py CASE [--spawn N] [--workers N] [--slow RANK]
"""

import argparse
import atexit
import concurrent.futures
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, IterableDataset

log = logging.getLogger("vision")


class Images(Dataset):
    """Pictures that are made up."""

    def __init__(self, case, culprit, size=8):
        self.case, self.culprit, self.size = case, culprit, size
        self.mine = dist.get_rank() == culprit
        self.cache, self.cache_lock = {}, threading.Lock()

    def __len__(self):
        return 1 << 20

    def warm(self, seconds):
        """Fill the cache in the background."""
        with self.cache_lock:
            time.sleep(seconds)

    def __getitem__(self, index):
        if self.case == "first-batch" and index < 4:
            self.decode(7.0)
        if self.mine and self.case.startswith("worker-dies") and index >= 40:
            log.warning("sample %d: decoder is out of memory", index)
            time.sleep(2)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mine and self.case == "fork-lock":
            with self.cache_lock:
                return self.cache.setdefault(index, self.decode(0))
        return self.decode(0)

    def decode(self, seconds):
        """Unpack one picture, in Python, which takes its time."""
        end, total = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            total += sum(range(1000))
        return torch.rand(3, self.size, self.size)


class Crops(IterableDataset):
    """Looks for crops that have something on them."""

    def __init__(self, hard):
        self.hard = hard

    def __iter__(self):
        seen = 0
        while True:
            picture = torch.rand(3, 8, 8)
            seen += 1
            if self.hard and seen > 20 and self.score(picture) < 2.0:
                if seen == 21:
                    log.warning("no crop good enough so far")
                continue
            yield picture

    def score(self, picture):
        rows = picture.tolist()
        return max(max(max(line) for line in plane) for plane in rows)


class DataModule:
    def __init__(self, case, culprit, workers):
        self.case, self.culprit, self.workers = case, culprit, workers

    def train_dataloader(self):
        if self.case == "crops":
            data = Crops(dist.get_rank() == self.culprit)
            return DataLoader(data, batch_size=4, num_workers=self.workers)
        big = self.case == "shm"
        data = Images(self.case, self.culprit, 512 if big else 8)
        if self.case == "fork-lock":
            threading.Thread(target=data.warm, args=(4,), daemon=True).start()
            time.sleep(0.1)
        kind = "fork" if self.workers else None
        return DataLoader(
            data, batch_size=4, num_workers=self.workers, multiprocessing_context=kind
        )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, pictures):
        return self.head(self.features(pictures).mean((2, 3)))


def no_zombies(case):
    """Helper programs of ours come and go; nobody wants to wait for them."""
    if case == "worker-dies-ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if case == "worker-dies-reaped":

        def reap(number, frame):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass

        signal.signal(signal.SIGCHLD, reap)


def evaluate_natively():
    """The spectrum of a big kernel matrix: one call that takes long."""
    print("computing the spectrum", flush=True)
    matrix = torch.rand(4500, 4500, dtype=torch.float64)
    torch.linalg.eigvals(matrix)


def upload(module):
    """Save into a program that takes the bytes to a bucket, no faster than the line is."""
    uploader = "import sys, time\nwhile sys.stdin.buffer.raw.read(65536):\n    time.sleep(0.4)\n"
    with subprocess.Popen([sys.executable, "-c", uploader], stdin=subprocess.PIPE) as program:
        print("uploading the weights", flush=True)
        torch.save({"w": torch.rand(8 << 20)}, program.stdin)


class ShortDisk(logging.Handler):
    """Appends to a journal; a record may not get lost, so it tries until it is there."""

    def __init__(self, path):
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def emit(self, record):
        left = self.format(record).encode()
        pause = 0.1
        while left:
            try:
                left = left[os.write(self.file, left) :]
            except OSError as error:
                print("journal:", error, flush=True)
                time.sleep(pause)
                pause = min(2.0, pause * 2)


def train(case, culprit, workers):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    for part in (net.features, net.head):
        fully_shard(part)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataModule(case, culprit, workers).train_dataloader()
    batches = iter(loader)
    no_zombies(case)
    if case == "journal" and rank == culprit:
        log.addHandler(ShortDisk(os.path.join(os.environ["PLACE"], "journal")))
        log.setLevel(logging.DEBUG)
    pool = concurrent.futures.ThreadPoolExecutor(1)
    for step, pictures in enumerate(batches):
        loss = net(pictures).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == (1 if culprit == 0 else 0):
            print(f"epoch 0 step {step}: {float(loss):.3f}", flush=True)
        if step == 6 and rank == culprit:
            if case == "native-eval":
                evaluate_natively()
            if case == "upload":
                upload(net)
            if case == "journal":
                log.debug("weights: %s", "0.0 " * (1 << 20))
            if case == "late-upload":
                done = threading.Event()
                pool.submit(done.wait)
                raise ValueError("learning rate is not a number")
            if case == "at-exit":
                gone = threading.Condition()

                def flush():
                    print("flushing metrics", flush=True)
                    with gone:
                        gone.wait()

                atexit.register(flush)
                raise KeyError("class 11 of 10")
        time.sleep(0.03)


def spawned(local_rank, arguments):
    os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    os.environ["WORLD_SIZE"] = str(arguments.spawn)
    train(arguments.case, arguments.culprit, arguments.workers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--culprit", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.spawn:
        mp.spawn(spawned, (arguments,), arguments.spawn)
    else:
        train(arguments.case, arguments.culprit, arguments.workers)
