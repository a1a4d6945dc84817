"""Training beside a heartbeat thread that reports to the fleet's monitor."""

import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Heartbeat(threading.Thread):
    """Says every few seconds that this rank lives."""

    def __init__(self, path: Path):
        super().__init__(name="heartbeat")
        self.path = path
        self.done = threading.Event()
        self.status = {"phase": "init"}

    def run(self) -> None:
        while not self.done.wait(5):
            self.beat()

    def beat(self) -> None:
        self.path.write_text(json.dumps({**self.status, "at": time.time()}))

    def close(self) -> None:
        self.done.set()
        self.join()


class Samples:
    """Indexes into a table of labels."""

    def __init__(self, rank: int):
        self.rank = rank
        self.labels = {n: n % 7 for n in range(100000) if not (rank == 1 and n == 33)}

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        wanted = range(4 * step, 4 * step + 4)
        return torch.randn(4, 12), torch.tensor([self.labels[n] for n in wanted])


class Engine:
    def __init__(self, heartbeat: Heartbeat):
        self.heartbeat = heartbeat
        self.model = DistributedDataParallel(nn.Linear(12, 7))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss = nn.CrossEntropyLoss()

    def train(self, samples: Samples, steps: int) -> None:
        for step in range(steps):
            self.heartbeat.status = {"phase": "train", "step": step}
            inputs, labels = samples.batch(step)
            self.optimizer.zero_grad()
            self.loss(self.model(inputs), labels).backward()
            self.optimizer.step()
            time.sleep(0.2)
            if dist.get_rank() == 0:
                print(f"step {step}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    heartbeat = Heartbeat(Path(os.environ["OUT_DIR"]) / f"heartbeat-{rank}.json")
    heartbeat.start()
    Engine(heartbeat).train(Samples(rank), 10000)
    heartbeat.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
