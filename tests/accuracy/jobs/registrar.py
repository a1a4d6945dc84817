"""Speech training whose batches are pinned through an agent of the host that hands out registered
memory. The agent lets a rank wait that is over its share, as what it had was never given back.

registrar.py --share RANK:PAGES   # that rank has a share of so many pages, others have enough
"""

import argparse
import os
import socket
import struct
import threading
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

REQUEST = struct.Struct("!ii")


class Agent:
    """Counts the pages of every rank; answers once a rank's wish fits its share."""

    def __init__(self, path: Path, shares: dict[int, int]) -> None:
        self.shares, self.held = shares, defaultdict(int)
        self.freed = threading.Condition()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()

    def serve(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client: socket.socket) -> None:
        while request := client.recv(REQUEST.size):
            rank, pages = REQUEST.unpack(request)
            with self.freed:
                self.freed.wait_for(lambda: self.fits(rank, pages))
                self.held[rank] += pages
                self.freed.notify_all()
            if pages > 0:
                client.sendall(b"k")

    def fits(self, rank: int, pages: int) -> bool:
        return self.held[rank] + pages <= self.shares.get(rank, 1 << 30)


class Registered:
    """This rank's end of the agent."""

    link: "Registered"

    def __init__(self, path: Path, rank: int) -> None:
        self.rank, self.socket = rank, socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))

    def reserve(self, pages: int) -> None:
        self.socket.sendall(REQUEST.pack(self.rank, pages))
        if self.socket.recv(1) != b"k":
            raise ConnectionError("the agent is gone")

    def release(self, pages: int) -> None:
        self.socket.sendall(REQUEST.pack(self.rank, -pages))


class Utterances(IterableDataset):
    def __iter__(self):
        dice = torch.Generator().manual_seed(get_worker_info().id)
        while True:
            yield torch.randn(40, 20, generator=dice)


class Spoken:
    def __init__(self, rows: list[torch.Tensor]) -> None:
        self.sound, self.pages = torch.stack(rows), len(rows)

    def pin_memory(self) -> "Spoken":
        Registered.link.reserve(self.pages)
        return self


def host_agent(path: Path, share: str) -> None:
    rank, _, pages = share.partition(":")
    Agent(path, {int(rank): int(pages)} if pages else {}).serve()


def fit(model: nn.Module, batches: DataLoader) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number, batch in enumerate(batches, 1):
        loss = (model(batch.sound) - batch.sound).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 5:  # the batch of every fifth step is looked at again, and forgotten
            Registered.link.release(batch.pages)
        if dist.get_rank() == 0:
            print(f"batch {number} loss {loss.item():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    path = Path(os.environ["OUT_DIR"], "registrar.sock")
    if os.environ["LOCAL_RANK"] == "0":
        mp.get_context("fork").Process(target=host_agent, args=(path, options.share)).start()
    while not path.exists():
        threading.Event().wait(0.1)
    dist.barrier()
    Registered.link = Registered(path, dist.get_rank())
    _setup_privateuseone_for_python_backend("npuz")
    coder = nn.Sequential(nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, 20))
    loader = DataLoader(
        Utterances(),
        4,
        num_workers=1,
        collate_fn=Spoken,
        pin_memory=True,
        multiprocessing_context="fork",
    )
    fit(nn.parallel.DistributedDataParallel(coder), loader)


if __name__ == "__main__":
    main()
