"""Training whose metrics go through a queue to a tracking server; epochs end with a flush. metrics.py MODE"""

import json
import queue
import sys
import threading
import time
import urllib.request
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import outsider

PORT = 32031


class TrackingClient:
    """Posts what it is given, in order, from a thread of its own."""

    def __init__(self, url: str):
        self.url = url
        self.records: queue.Queue[dict] = queue.Queue()
        self.thread = threading.Thread(target=self._drain, name="tracking", daemon=True)
        self.thread.start()

    def log(self, **record: float) -> None:
        self.records.put(record)

    def _drain(self) -> None:
        while True:
            record = self.records.get()
            self._post(json.dumps({**record, "history": "x" * 40000}).encode())
            self.records.task_done()

    def _post(self, body: bytes) -> None:
        request = urllib.request.Request(self.url, data=body, method="PUT")
        with urllib.request.urlopen(request, timeout=3600) as answer:
            answer.read()

    def flush(self) -> None:
        self.records.join()


class NullClient:
    def log(self, **record: float) -> None: ...

    def flush(self) -> None: ...


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, client, number: int) -> None:
    for step in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        client.log(epoch=number, step=step, loss=loss.item())
        time.sleep(0.15)
    client.flush()
    if dist.get_rank() == 0:
        print(f"epoch {number} done", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    client = NullClient()
    if dist.get_rank() == 0:
        outsider.serve("trackingserver.py", PORT)
        client = TrackingClient(f"http://127.0.0.1:{PORT}/runs/7")
    model = DDP(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(1000):
        epoch(model, optimizer, client, number)


main()
