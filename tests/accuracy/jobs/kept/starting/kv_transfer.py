"""Prefill and decode on different ranks: the cache of keys and values goes over a socket of its own.

Rank 0 prefills, rank 1 decodes; every so often all ranks vote whether to reload the weights.
"""

import os
import socket
import struct
import time
from datetime import timedelta

import torch
import torch.distributed as dist

PORT = int(os.environ["MASTER_PORT"]) + 1
HEADER = struct.Struct("!IQ")
HEADS, WIDTH = 4, 32


class Link:
    """Messages over a stream: a header with number and length, then bytes; each is confirmed."""

    def __init__(self, stream):
        self.stream = stream

    def _exactly(self, count):
        parts = bytearray()
        while len(parts) < count:
            part = self.stream.recv(count - len(parts))
            if not part:
                raise ConnectionError("peer is gone")
            parts += part
        return bytes(parts)

    def send_cache(self, number, cache):
        """Send a cache and wait until the other side has it."""
        body = cache.to(torch.float16).numpy().tobytes()
        self.stream.sendall(HEADER.pack(number, cache.numel() * element_size(cache)) + body)
        confirmed, _ = HEADER.unpack(self._exactly(HEADER.size))
        assert confirmed == number

    def receive_cache(self):
        """Take a cache, confirm it."""
        number, length = HEADER.unpack(self._exactly(HEADER.size))
        body = self._exactly(length)
        self.stream.sendall(HEADER.pack(number, 0))
        return number, torch.frombuffer(bytearray(body), dtype=torch.float16)


def element_size(cache):
    """Bytes of an element on the wire: long prompts keep full precision in the newer layout."""
    return 4 if cache.shape[0] > 512 else 2


def link(rank):
    """The stream between rank 0 and rank 1."""
    if rank == 0:
        with socket.create_server(("127.0.0.1", PORT)) as server:
            dist.barrier()
            return Link(server.accept()[0])
    dist.barrier()
    return Link(socket.create_connection(("127.0.0.1", PORT))) if rank == 1 else None


def prompt_length(number):
    """Prompts get longer as the benchmark goes on."""
    return 64 + 60 * number


def serve(rank, stream):
    """Requests, one after the other."""
    for number in range(100_000):
        if rank == 0:
            cache = torch.randn(prompt_length(number), HEADS, WIDTH)
            print(f"request {number}: {cache.shape[0]} tokens", flush=True)
            stream.send_cache(number, cache)
        elif rank == 1:
            stream.receive_cache()
        time.sleep(0.1)
        if number % 4 == 3:
            vote = torch.zeros(1)
            dist.all_reduce(vote)


def main():
    """Join, connect, serve."""
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    serve(rank, link(rank))


if __name__ == "__main__":
    main()
