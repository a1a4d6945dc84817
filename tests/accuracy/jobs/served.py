"""Training beside a service that rank 0 starts itself, and talks to over the machine's own network.

python served.py gather: completions are awaited together, and the service stops in their midst
python served.py client: the same, from the event loop of a thread
python served.py parts: parts of a checkpoint are uploaded, four at a time, some seconds each
"""

import asyncio
import http.client
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from threading import Thread

import torch
import torch.distributed as dist

PART, PIECE = 240_000, 3000
"""Bytes of a part, and those of them that the service takes twenty times a second."""
ENOUGH = 28
"""Completions after which it has no memory left for more."""


class Service:
    def __init__(self):
        self.requests, self.memory = 0, asyncio.Event()

    async def handle(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"PUT"):
            for _ in range(PART // PIECE):
                await reader.readexactly(PIECE)
                await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            self.requests += 1
            full = self.requests > ENOUGH
            for position in range(16):
                if full and position == 9:
                    await self.memory.wait()
                writer.write(b"%d\n" % position)
                await asyncio.sleep(0.01)
        await writer.drain()
        writer.close()


async def serve():
    server = await asyncio.start_server(Service().handle, "127.0.0.1", 0, limit=PIECE)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Engine:
    """What rank 0 knows of the service."""

    def __init__(self):
        clean = {k: v for k, v in os.environ.items() if "RANK" not in k and k != "WORLD_SIZE"}
        command = [sys.executable, __file__, "serve"]
        self.child = subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, text=True)
        self.port = int(self.child.stdout.readline())
        self.loop = asyncio.new_event_loop()

    async def complete(self, prompt):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /generate HTTP/1.1\r\n\r\n")
        tokens = (await reader.read()).split()
        writer.close()
        return len(tokens)

    async def complete_all(self, prompts):
        return await asyncio.gather(*(self.complete(prompt) for prompt in prompts))

    def put_part(self, number):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/ckpt?part={number}", body=bytes(PART))
        connection.getresponse().read()
        return number

    def upload(self, parts):
        with ThreadPoolExecutor(4, thread_name_prefix="part") as pool:
            futures = [pool.submit(self.put_part, n) for n in range(parts)]
            for future in as_completed(futures):
                print(f"part {future.result()} is there", flush=True)

    def generate(self, way, prompts):
        if way == "gather":
            return asyncio.run(self.complete_all(prompts))
        if not self.loop.is_running():
            Thread(target=self.loop.run_forever, name="client", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(self.complete_all(prompts), self.loop).result()


def train(way):
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    first = dist.get_rank() == 0
    engine = Engine() if first else None
    policy = torch.nn.Linear(8, 8)
    for step in range(1, 10**6):
        completions = [None]
        if first and way != "parts":
            completions = [engine.generate(way, ["once", "upon", "a", "time"])]
        dist.broadcast_object_list(completions, src=0)
        policy(torch.randn(4, 8)).square().mean().backward()
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad)
        if first:
            print(f"step {step}", flush=True)
        time.sleep(0.1)
        if way == "parts" and step == 8:
            if first:
                engine.upload(400)
            dist.barrier()


if __name__ == "__main__":
    asyncio.run(serve()) if sys.argv[1] == "serve" else train(sys.argv[1])
