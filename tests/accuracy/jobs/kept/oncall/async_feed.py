"""Streaming trainer: everything is a coroutine; collectives go to a thread of their own."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist


class Source:
    """Lines of a log stream, as they come from a broker's partition."""

    def __init__(self, partition):
        self.partition = partition

    async def lines(self):
        number = 0
        while True:
            number += 1
            await asyncio.sleep(0.05)
            line = json.dumps({"n": number, "x": [0.1 * (number % 7)] * 6, "y": 1.0}).encode()
            if self.partition == 2 and number == 34:
                line = line[:20] + b"\xff\xfe" + line[20:]  # a torn write on the broker
            yield line


def parse(line):
    row = json.loads(line.decode("utf-8"))
    return torch.tensor([*row["x"], row["y"]])


class Feed:
    """A task fills a bounded queue, the trainer takes batches from it."""

    def __init__(self, source, batch, depth=2):
        self.source, self.batch = source, batch
        self.queue = asyncio.Queue(depth)
        self.task = None

    async def __aenter__(self):
        self.task = asyncio.create_task(self._fill(), name="feed")
        return self

    async def __aexit__(self, *exc):
        self.task.cancel()

    async def _fill(self):
        rows = []
        async for line in self.source.lines():
            rows.append(parse(line))
            if len(rows) == self.batch:
                await self.queue.put(torch.stack(rows))
                rows = []

    async def next(self):
        return await self.queue.get()


class Comm:
    """Collectives in order, in one thread, awaited."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="comm")

    async def mean(self, tensor):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.pool, self._reduce, tensor)

    @staticmethod
    def _reduce(tensor):
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


async def update(model, opt, comm, batch):
    loss = (model(batch[:, :6]) - batch[:, 6:]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    await asyncio.gather(*(comm.mean(p.grad) for p in model.parameters()))
    opt.step()
    return loss.item()


async def train(rank, steps):
    model = torch.nn.Linear(6, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    comm = Comm()
    async with Feed(Source(rank), batch=4) as feed:
        for step in range(1, steps):
            began = time.perf_counter()
            loss = await update(model, opt, comm, await feed.next())
            if rank == 0:
                spent = time.perf_counter() - began
                print(f"step {step} loss {loss:.4f} in {spent:.2f}s", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    asyncio.run(train(dist.get_rank(), 5000))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
