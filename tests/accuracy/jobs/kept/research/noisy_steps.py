"""A slow but sound run: large accumulation, helper threads that mostly wait, and a noisy log."""

import asyncio
import logging
import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("train")


class Prefetcher:
    """Makes batches ahead of the trainer."""

    def __init__(self, depth: int = 2) -> None:
        self.ready: queue.Queue[torch.Tensor] = queue.Queue(depth)
        threading.Thread(target=self._fill, name="prefetch", daemon=True).start()

    def _fill(self) -> None:
        while True:
            time.sleep(0.7)
            self.ready.put(torch.randn(4, 8))

    def __iter__(self):
        while True:
            yield self.ready.get()


class Telemetry:
    """An event loop in a thread of its own, with a service that is often not there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="telemetry", daemon=True).start()

    async def _send(self, row: dict) -> None:
        for attempt in range(3):
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", 31049), 2)
                writer.close()
            except OSError as error:
                log.warning("telemetry: %s; retry %d/3: connection timed out?", error, attempt + 1)
                await asyncio.sleep(1.5)

    def send(self, row: dict) -> None:
        asyncio.run_coroutine_threadsafe(self._send(row), self.loop)


class EMAThread(threading.Thread):
    """Follows the weights whenever a step is done."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(name="ema", daemon=True)
        self.model, self.changed = model, threading.Condition()
        self.shadow = [p.detach().clone() for p in model.parameters()]

    def run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait()
            for s, p in zip(self.shadow, self.model.parameters(), strict=True):
                s.lerp_(p.detach(), 0.01)


def accumulate(model: nn.Module, batches, count: int) -> torch.Tensor:
    total = torch.zeros(())
    for _ in range(count):
        loss = model(next(batches)).pow(2).mean() / count
        loss.backward()
        total += loss.detach()
    return total


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    rank = dist.get_rank()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ema, telemetry, batches = EMAThread(model), Telemetry(), iter(Prefetcher())
    ema.start()
    for step in range(1, 2000):
        loss = accumulate(model, batches, count=3 if step < 4 else 16)
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        with ema.changed:
            ema.changed.notify_all()
        telemetry.send({"loss": loss.item()})
        if rank == 0:
            log.info("update %d loss %.4f", step, loss)
        if step % 3 == 0:
            log.warning("rank %d: grad norm spike, clipping to 1.0", rank)


if __name__ == "__main__":
    main()
