"""Training that gets on while its uploader, in the background, waits for a registry's answer."""

import io
import queue
import threading
import time
import urllib.request
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Uploader:
    """Checkpoints are sent by a thread; of those that wait, only the newest is kept."""

    def __init__(self, address):
        self.address = address
        self.waiting = queue.Queue(maxsize=1)
        threading.Thread(target=self._run, name="uploader", daemon=True).start()

    def offer(self, name, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        try:
            self.waiting.get_nowait()
        except queue.Empty:
            pass
        self.waiting.put((name, buffer.getvalue()))

    def _run(self):
        while True:
            name, body = self.waiting.get()
            url = f"http://{self.address}/checkpoints/{name}"
            request = urllib.request.Request(url, data=body, method="PUT")
            with urllib.request.urlopen(request) as response:
                response.read()


class Accumulating:
    """Many small batches, one synchronization."""

    def __init__(self, model, micro_steps, pause):
        self.model, self.micro_steps, self.pause = model, micro_steps, pause
        self.optimizer = torch.optim.AdamW(model.parameters())

    def step(self):
        total = 0.0
        with self.model.no_sync():
            for _ in range(self.micro_steps - 1):
                total += self._micro()
        total += self._micro()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total / self.micro_steps

    def _micro(self):
        time.sleep(self.pause)  # a bigger model
        x = torch.randn(32, 128)
        loss = (self.model(x) - x).square().mean() / self.micro_steps
        loss.backward()
        return loss.item()


def main():
    address = services.reach("registry", 32560)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    layers = nn.Sequential(nn.Linear(128, 128), nn.ELU(), nn.Linear(128, 128))
    model = DistributedDataParallel(layers)
    loop = Accumulating(model, micro_steps=16, pause=0.15)
    uploader = Uploader(address) if rank == 0 else None
    for step in range(10_000):
        loss = loop.step()
        if uploader and step % 3 == 2:
            uploader.offer(f"step-{step}", model.module.state_dict())
            print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
