"""Fine-tuning that fetches its base weights from a mirror of the hub: the first rank of the node
downloads into the node's cache, the others wait for it and read what is there."""

import hashlib
import os
import urllib.request
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

MIRROR = os.environ["MIRROR"]
CACHE = Path(os.environ["OUT_DIR"], "hub")
CHUNK = 1 << 16


@contextmanager
def main_process_first():
    """The body runs on rank 0, and only then on the others."""
    limit = timedelta(minutes=30)
    if dist.get_rank() != 0:
        dist.monitored_barrier(timeout=limit, wait_all_ranks=True)
    yield
    if dist.get_rank() == 0:
        dist.monitored_barrier(timeout=limit, wait_all_ranks=True)


class Hub:
    """Files of a model, by name."""

    def __init__(self, base, cache):
        self.base, self.cache = base.rstrip("/"), cache
        cache.mkdir(parents=True, exist_ok=True)

    def file(self, repository, name):
        """Path of a file in the cache; fetched if it is not there."""
        key = hashlib.sha256(f"{repository}/{name}".encode()).hexdigest()[:16]
        path = self.cache / key
        if not path.exists():
            self._fetch(f"{self.base}/{repository}/{name}", path)
        return path

    def _fetch(self, url, path):
        part = path.with_suffix(".incomplete")
        with urllib.request.urlopen(url) as answer, part.open("wb") as file:
            total = int(answer.headers["Content-Length"])
            print(f"downloading {url} ({total >> 20} MiB)", flush=True)
            self._copy(answer, file)
        part.rename(path)

    @staticmethod
    def _copy(answer, file):
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            file.flush()


def load_base(hub):
    """The base model, from the cache of the node."""
    with main_process_first():
        path = hub.file("acme/base-7b", "model.safetensors")
    state = torch.frombuffer(bytearray(path.read_bytes()[: 4 * 1024]), dtype=torch.float32)
    head = torch.nn.Linear(64, 16)
    with torch.no_grad():
        head.weight.copy_(state[:1024].view(16, 64))
    return head


def main():
    """Load, then tune."""
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    warm = torch.ones(1)
    dist.all_reduce(warm)
    print(f"rank {dist.get_rank()} of {int(warm)} ready", flush=True)
    model = torch.nn.parallel.DistributedDataParallel(load_base(Hub(MIRROR, CACHE)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(10_000):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
