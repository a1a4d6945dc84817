"""A tensor-parallel inference server: an asyncio front on rank 0 takes requests and puts them into the queue
of the engine, which tells all ranks what to run. Nobody asks anything just now.
"""

import asyncio
import dataclasses
import itertools
import json
import queue
import threading
import time

import torch
import torch.distributed as dist
from common import join, say

PORT = 29250


@dataclasses.dataclass
class Request:
    number: int
    prompt: list[int]
    tokens: int
    answer: "queue.Queue[list[int]]" = dataclasses.field(default_factory=queue.Queue)


class Worker:
    """This rank's share of the model."""

    def __init__(self, rank: int, world: int, width: int = 128) -> None:
        torch.manual_seed(0)
        self.embed = torch.randn(256, width)
        self.up = torch.randn(width, 4 * width).chunk(world, 1)[rank]
        self.down = torch.randn(4 * width, width).chunk(world, 0)[rank]

    def forward(self, tokens: list[int]) -> int:
        hidden = self.embed[torch.tensor(tokens)].mean(0)
        partial = (hidden @ self.up).relu() @ self.down
        dist.all_reduce(partial)
        return int((self.embed @ partial).argmax())

    def generate(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self.forward(tokens))
        return tokens[len(prompt) :]

    def follow(self) -> None:
        """What ranks other than 0 do for ever: run what rank 0 tells."""
        while True:
            told: list[tuple[list[int], int] | None] = [None]
            dist.broadcast_object_list(told, src=0)
            if told[0] is None:
                return
            self.generate(*told[0])


class Engine:
    """Rank 0: the queue between front and workers."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.waiting: queue.Queue[Request] = queue.Queue()
        self.numbers = itertools.count()
        self.tokens = self.served = 0

    def ask(self, prompt: list[int], tokens: int) -> list[int]:
        request = Request(next(self.numbers), prompt, tokens)
        self.waiting.put(request)
        return request.answer.get()

    def loop(self) -> None:
        while True:
            request = self.waiting.get()
            dist.broadcast_object_list([(request.prompt, request.tokens)], src=0)
            request.answer.put(self.worker.generate(request.prompt, request.tokens))
            self.tokens += request.tokens
            self.served += 1
            say(f"engine step {self.served}: request {request.number} finished")

    def statistics(self, every: float = 10.0) -> None:
        while True:
            before = self.tokens
            time.sleep(every)
            rate = (self.tokens - before) / every
            say(
                f"throughput: {rate:.1f} tokens/s, running: 0 reqs, waiting: {self.waiting.qsize()} reqs"
            )


async def front(engine: Engine) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            told = json.loads(line)
            answer = await asyncio.to_thread(engine.ask, told["prompt"], told["tokens"])
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", PORT)
    say(f"listening on {PORT}")
    warm = [asyncio.to_thread(engine.ask, [number], 8) for number in range(8)]
    await asyncio.gather(*warm)
    say("warm-up done, ready for requests")
    await server.serve_forever()


def main() -> None:
    rank, world = join()
    worker = Worker(rank, world)
    dist.barrier()
    if rank:
        worker.follow()
        return
    engine = Engine(worker)
    threading.Thread(target=lambda: asyncio.run(front(engine)), name="http", daemon=True).start()
    threading.Thread(target=engine.statistics, name="statistics", daemon=True).start()
    engine.loop()


if __name__ == "__main__":
    main()
