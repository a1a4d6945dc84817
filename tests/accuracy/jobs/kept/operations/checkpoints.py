"""Training with checkpoints: written in the background, at once, or put to an object store. checkpoints.py MODE"""

import http.client
import io
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import outsider

PORTS = {"stall": 32011, "slow": 32012}


class BackgroundWriter:
    """One file at a time, written by a thread; the next save waits for the last."""

    def __init__(self, root: Path):
        self.root = root
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="ckpt-writer")
        self.pending: Future | None = None

    def _write(self, state: dict, path: Path) -> None:
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)

    def save(self, state: dict, step: int) -> None:
        if self.pending is not None:
            self.pending.result()
        copy = {k: v.clone() for k, v in state.items()}
        self.pending = self.pool.submit(self._write, copy, self.root / f"step{step}.pt")


class PlainWriter:
    """Shards of a large state, one after the other, each synced."""

    def __init__(self, root: Path):
        self.root = root

    def save(self, state: dict, step: int) -> None:
        for number in range(200):
            with open(self.root / f"step{step}-{number:03d}.pt", "wb") as file:
                torch.save({"shard": torch.zeros(1 << 20)}, file)
                os.fsync(file.fileno())
            if number > 3:
                (self.root / f"step{step}-{number - 3:03d}.pt").unlink(missing_ok=True)


class Bucket:
    """Puts objects over HTTP, in parts."""

    def __init__(self, port: int, part: int = 4 << 20):
        self.port, self.part = port, part
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)

    def put(self, key: str, body: memoryview) -> None:
        for number, at in enumerate(range(0, len(body), self.part)):
            self._put_part(f"/ckpt/{key}?part={number}", body[at : at + self.part])

    def _put_part(self, path: str, part: memoryview) -> None:
        self.connection.request("PUT", path, body=bytes(part))
        answer = self.connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")


class BucketWriter:
    def __init__(self, mode: str):
        outsider.serve("objectstore.py", PORTS[mode], mode)
        self.port = PORTS[mode]

    def save(self, state: dict, step: int) -> None:
        buffer = io.BytesIO()
        torch.save({**state, "optimizer": torch.zeros(80 << 20, dtype=torch.uint8)}, buffer)
        print(f"step {step}: uploading {buffer.getbuffer().nbytes >> 20} MiB", flush=True)
        Bucket(self.port).put(f"step{step}.pt", buffer.getbuffer())


def writer(mode: str):
    if mode in PORTS:
        return BucketWriter(mode)
    root = Path(os.environ["PLACE"])
    return BackgroundWriter(root) if mode == "background" else PlainWriter(root)


def main() -> None:
    mode = sys.argv[1]
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    model = nn.Linear(64, 64)
    save = writer(mode) if rank == 0 else None
    for step in range(1, 100000):
        loss = model(torch.randn(4, 64)).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        time.sleep(0.3)
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step % 4 == 0:
            if save:
                save.save(model.state_dict(), step)
            dist.barrier()


main()
