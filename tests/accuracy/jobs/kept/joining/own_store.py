"""Ranks that make their own TCPStore; rank 0 takes the next port where the wanted one is taken."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=30)


class Rendezvous:
    """Finds the store of the job."""

    def __init__(self, host: str, port: int, rank: int, world: int):
        self.host, self.port, self.rank, self.world = host, port, rank, world

    def _open(self, port: int) -> dist.TCPStore:
        return dist.TCPStore(self.host, port, self.world, self.rank == 0, timeout=TIMEOUT)

    def host_store(self) -> dist.TCPStore:
        """Rank 0: on the wanted port, or on one of those behind it."""
        for port in range(self.port, self.port + 16):
            try:
                print(f"[rank 0] trying port {port}", flush=True)
                return self._open(port)
            except dist.DistNetworkError:
                print(f"[rank 0] port {port} is in use, trying the next one", flush=True)
        raise RuntimeError("no free port")

    def join(self) -> dist.TCPStore:
        if self.rank == 0:
            return self.host_store()
        time.sleep(2.0)  # let rank 0 open it first
        print(f"[rank {self.rank}] connecting to {self.host}:{self.port}", flush=True)
        return self._open(self.port)


def setup() -> tuple[int, int]:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = Rendezvous(host, port, rank, world).join()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    return rank, world


def main() -> None:
    rank, world = setup()
    model = torch.nn.Linear(16, 16)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    for step in range(100_000):
        loss = model(torch.randn(4, 16)).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.01 * parameter.grad / world
            parameter.grad = None
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    main()
