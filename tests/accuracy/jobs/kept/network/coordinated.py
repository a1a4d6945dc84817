"""Ranks whose store is kept by the coordinator of the job on the login node.

Checkpoints are announced there: every rank says that its part is written, and goes on once all
have (no collective: the coordinator is meant to see it, too).
"""

import logging
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("coordinated")
WAIT = timedelta(minutes=45)


class Announcer:
    """What ranks tell the coordinator."""

    def __init__(self, store, rank, world):
        self.store = dist.PrefixStore("announce", store)
        self.rank, self.world = rank, world

    def arrived(self, tag):
        return self.store.add(f"{tag}/parts", 1)

    def wait_for_all(self, tag):
        if self.arrived(tag) == self.world:
            self.store.set(f"{tag}/complete", "1")
        self.store.wait([f"{tag}/complete"], WAIT)


class Checkpointer:
    def __init__(self, folder, announcer, every):
        self.folder, self.announcer, self.every = Path(folder), announcer, every
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, step, state):
        if step == 0 or step % self.every:
            return
        part = self.folder / f"step{step}-{self.announcer.rank}.pt"
        torch.save(state, part)
        self.announcer.wait_for_all(f"step{step}")
        for old in sorted(self.folder.glob("*.pt"))[:-4]:
            old.unlink(missing_ok=True)
        log.info("rank %d: checkpoint of step %d is complete", self.announcer.rank, step)


def connect():
    """A client of the coordinator's store, and the job's own group over it."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, world, is_master=False, timeout=WAIT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=WAIT)
    return store, rank, world


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    store, rank, world = connect()
    save = Checkpointer(f"/tmp/ckpt-{rank}", Announcer(store, rank, world), every=12)
    weights = torch.zeros(256)
    for step in range(1_000_000):
        grad = torch.randn(256)
        dist.all_reduce(grad)
        weights.sub_(grad, alpha=1e-3 / world)
        if rank == 0:
            log.info("step %d norm %.3f", step, weights.norm().item())
        save(step, {"weights": weights, "step": step})
        time.sleep(0.4)


if __name__ == "__main__":
    main()
