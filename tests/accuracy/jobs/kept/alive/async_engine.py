"""An inference engine on asyncio: rank 0 serves lines over TCP, the other ranks follow its lead.

After the morning's requests nobody asks; a router keeps two connections open and says "ping" over
one of them every four seconds.
"""

import asyncio
import datetime
import json
import os
import subprocess
import sys

import torch
import torch.distributed as dist

PORT = 29150
STOP = -1


class Shard:
    """This rank's part of the model."""

    def __init__(self, rank: int) -> None:
        self.weight = torch.randn(128, 128, generator=torch.Generator().manual_seed(rank))

    def run(self, seed: int) -> float:
        """A forward pass with the others."""
        hidden = torch.full((128,), float(seed)) @ self.weight
        dist.all_reduce(hidden)
        return hidden.norm().item()


class Engine:
    """Batches what the connections put into its queue."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.waiting: asyncio.Queue[tuple[int, asyncio.Future]] = asyncio.Queue()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a JSON object each line, answered by one."""
        while line := await reader.readline():
            message = json.loads(line)
            if message.get("ping"):
                reply = {"pong": True}
            else:
                done: asyncio.Future = asyncio.get_running_loop().create_future()
                await self.waiting.put((message["seed"], done))
                reply = {"norm": await done}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()

    async def schedule(self) -> None:
        """Take a request, run it on all ranks, answer."""
        while True:
            seed, done = await self.waiting.get()
            dist.broadcast(torch.tensor([seed]), src=0)
            done.set_result(self.shard.run(seed))

    async def serve(self) -> None:
        """Until somebody ends it."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", PORT)
        start_router()
        async with server:
            await asyncio.gather(server.serve_forever(), self.schedule())


def start_router() -> None:
    """Another pod's program."""
    clean = {k: v for k, v in os.environ.items() if "RANK" not in k and "WORLD" not in k}
    command = ["setsid", "--fork", sys.executable, __file__, "route"]
    subprocess.run(command, env=clean, check=True)


async def route() -> None:
    """Eight requests, then pings only."""
    pool = [await asyncio.open_connection("127.0.0.1", PORT) for _ in range(2)]
    for number in range(8):
        reader, writer = pool[number % 2]
        writer.write(json.dumps({"seed": number}).encode() + b"\n")
        print(f"request {number}: {(await reader.readline()).decode().strip()}", flush=True)
    reader, writer = pool[0]
    while True:
        await asyncio.sleep(4)
        writer.write(b'{"ping": true}\n')
        await reader.readline()


def follow(shard: Shard) -> None:
    """The other ranks."""
    while True:
        seed = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(seed, src=0)
        if seed.item() == STOP:
            return
        shard.run(int(seed.item()))


def main() -> None:
    """One rank of the engine."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=12))
    shard = Shard(dist.get_rank())
    dist.barrier()
    if dist.get_rank() == 0:
        asyncio.run(Engine(shard).serve())
    else:
        follow(shard)


if __name__ == "__main__":
    if sys.argv[1:] == ["route"]:
        asyncio.run(route())
    else:
        main()
