"""Image classifier on spot instances: survivors of a lost peer regroup through the store and go on."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

PATIENCE = timedelta(minutes=30)


class SpotNotice(threading.Thread):
    """Polls the instance metadata (here: a file) and turns a notice into a SIGTERM, as the agent does."""

    def __init__(self, path: str, after: int) -> None:
        super().__init__(name="spot-notice", daemon=True)
        self.path, self.after = path, after

    def run(self) -> None:
        while not os.path.exists(self.path):
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)


class Elastic:
    """Process group of one generation, and the way to the next one."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=PATIENCE,
        )
        self.generation = 0

    def form(self) -> None:
        store = dist.PrefixStore(f"pg{self.generation}", self.store)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world, timeout=PATIENCE
        )

    def regroup(self, why: Exception) -> None:
        """Everybody says that they are there; a restarted peer does so, too."""
        print(f"rank {self.rank}: lost a peer ({str(why)[:60]}), regrouping", flush=True)
        dist.destroy_process_group()
        self.generation += 1
        here = f"alive/{self.generation}"
        self.store.set(f"{here}/{self.rank}", str(time.time()))
        self.store.wait([f"{here}/{r}" for r in range(self.world)], PATIENCE)
        self.form()


class Trainer:
    def __init__(self, elastic: Elastic, out: str) -> None:
        self.elastic, self.out = elastic, out
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.step, self.drain = 0, False
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, signum, frame) -> None:
        self.drain = True

    def average_gradients(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.elastic.world

    def train_step(self) -> None:
        x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.average_gradients()
        self.opt.step()
        if self.elastic.rank == 0:
            print(f"step {self.step} loss {loss.item():.3f}", flush=True)
        if self.step == 8 and self.elastic.rank == self.elastic.world - 1:
            open(f"{self.out}/spot-notice", "w").close()
        time.sleep(0.3)
        self.step += 1

    def fit(self, steps: int) -> None:
        while self.step < steps:
            try:
                self.train_step()
            except RuntimeError as error:
                self.elastic.regroup(error)
            if self.drain:
                torch.save(self.model.state_dict(), f"{self.out}/drain-{self.elastic.rank}.pt")
                print(f"rank {self.elastic.rank}: SIGTERM, state saved, bye", flush=True)
                sys.exit(0)


def main() -> None:
    elastic = Elastic()
    elastic.form()
    if elastic.rank == elastic.world - 1:
        SpotNotice(f"{os.environ['OUT_DIR']}/spot-notice", 8).start()
    Trainer(elastic, os.environ["OUT_DIR"]).fit(5000)


if __name__ == "__main__":
    main()
