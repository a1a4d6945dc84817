"""Rank 0 has answers scored by a slow service, in an event loop; the others wait for the rewards.

scoring.py WAY; with `thread` the loop is in a thread of its own, with `silent` the service stops
answering
"""

import asyncio
import multiprocessing
import sys
import threading
import time

import torch
import torch.distributed as dist


async def judge(reader, writer):
    count = 0
    while await reader.readline():
        await asyncio.sleep(1.5)
        count += 1
        if sys.argv[1] == "silent" and count > 2:
            await asyncio.sleep(3600)
        writer.write(b"0.5\n")
        await writer.drain()


def serve(ports):
    async def main():
        server = await asyncio.start_server(judge, "127.0.0.1", 0)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def score(port, count):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        writer.write(b"an answer\n")
        await reader.readline()


def rewards(port, count):
    if sys.argv[1] == "thread":
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(score(port, count), loop).result()
    else:
        asyncio.run(score(port, count))


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        context = multiprocessing.get_context("spawn")
        ports = context.Queue()
        context.Process(target=serve, args=(ports,), daemon=True).start()
        port = ports.get()
    for step in range(100_000):
        dist.all_reduce(torch.ones(8))
        time.sleep(0.1)
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)
            if step == 7:
                rewards(port, 600)


if __name__ == "__main__":
    main()
