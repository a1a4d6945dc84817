"""Image classification; the shards come from an object store by a client without time limits."""

import io
import os
import socket
import struct
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PORT = 31010
STALLED = 41


def serve() -> None:
    """The store: answers every key but one, of which it has lost the disk."""
    import threading

    listener = socket.create_server(("127.0.0.1", PORT), reuse_port=True)

    def answer(client: socket.socket) -> None:
        while len(head := client.recv(4)) == 4:
            (key,) = struct.unpack("!I", head)
            if key == STALLED:
                time.sleep(3600)
            client.sendall(struct.pack("!I", 48) + os.urandom(48))

    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


class ObjectStore:
    """One connection per worker process."""

    def __init__(self) -> None:
        self.connection: socket.socket | None = None

    def _connect(self) -> socket.socket:
        if self.connection is None:
            for _ in range(100):
                try:
                    self.connection = socket.create_connection(("127.0.0.1", PORT))
                    self.connection.settimeout(None)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.2)
        return self.connection

    def _exactly(self, n: int) -> bytes:
        got = io.BytesIO()
        while got.tell() < n:
            got.write(self._connect().recv(n - got.tell()))
        return got.getvalue()

    def get(self, key: int) -> bytes:
        self._connect().sendall(struct.pack("!I", key))
        return self._exactly(*struct.unpack("!I", self._exactly(4)))


class ImageShards(Dataset):
    def __init__(self, n: int) -> None:
        self.n, self.store = n, ObjectStore()

    def __len__(self) -> int:
        return self.n

    def decode(self, raw: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).float().view(3, 4, 4) / 255

    def __getitem__(self, index: int):
        time.sleep(0.03)
        return self.decode(self.store.get(index)), index % 10


class LitClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
        )

    def training_step(self, batch) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)


def fit(model: LitClassifier, loader: DataLoader) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, batch in enumerate(loader, 1):
        loss = model.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"[train] step {step}/{len(loader)} loss {loss.item():.3f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    if dist.get_rank() == 0:
        clean = {
            k: v
            for k, v in os.environ.items()
            if "RANK" not in k and "WORLD" not in k and "TORCHELASTIC" not in k
        }
        subprocess.run(
            f"{sys.executable} {__file__} serve </dev/null &", shell=True, env=clean, check=True
        )
    dataset = ImageShards(400)
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2, prefetch_factor=2)
    fit(LitClassifier(), loader)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
