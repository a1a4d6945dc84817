"""Trains with a writer of events in the background; starts its ranks by itself."""

import json
import os
import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class EventFile:
    def __init__(self, path):
        self.file = open(path, "a")

    def append(self, event):
        self.file.write(json.dumps(event) + "\n")
        self.file.flush()


class WriterThread(threading.Thread):
    """Takes events from the queue and writes them."""

    def __init__(self, events, file):
        super().__init__(name="event-writer", daemon=True)
        self.events, self.file = events, file

    def run(self):
        while True:
            event = self.events.get()
            self.file.append(event)
            self.events.task_done()


class SummaryWriter:
    """`scalar` and `histogram` only queue; at most `pending` events wait."""

    def __init__(self, folder, rank, pending=20):
        self.events = queue.Queue(maxsize=pending)
        self.thread = WriterThread(
            self.events, EventFile(os.path.join(folder, f"events-{rank}.jsonl"))
        )
        self.thread.start()

    def scalar(self, tag, value, step):
        self._add({"tag": tag, "value": value, "step": step})

    def histogram(self, tag, tensor, step):
        self._add({"tag": tag, "bins": torch.histc(tensor, 8).tolist(), "step": step})

    def _add(self, event):
        event["wall"] = time.time()
        self.events.put(event)


def learning_rate(step, warmup=8):
    """Constant while warming up, then a decay that is worked out with tensors."""
    if step < warmup:
        return 0.01
    return torch.tensor(0.01) * 0.999 ** (step - warmup)


def train(rank, world, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    writer = SummaryWriter(folder, rank) if rank == 0 else None
    for step in range(1_000_000):
        rate = learning_rate(step)
        optimizer.param_groups[0]["lr"] = float(rate)
        loss = model(torch.randn(16, 30)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if writer:
            writer.scalar("train/loss", loss.item(), step)
            writer.scalar("train/lr", rate, step)
            writer.histogram("weights", model.module.weight.detach(), step)
            print("step", step, flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    mp.spawn(train, args=(3, os.environ["OUT_DIR"]), nprocs=3)
