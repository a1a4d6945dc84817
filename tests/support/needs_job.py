"""A job of which stacks of Python leave open who is to blame; run under torchrun by tests.

needs_job.py PORT LIBRARY   rank 0 waits in all_reduce, ranks 1 and 2 for a service on PORT that
                            never answers, in poll, and rank 3 for a lock of a C library
"""

from __future__ import annotations

import ctypes
import socket
import sys

import torch
import torch.distributed as dist


def fetch_shard(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as service:
        # With a timeout Python waits in poll, which does not say for which descriptor.
        service.settimeout(100000)
        return service.recv(1)


def fill_buffer(library: ctypes.CDLL) -> None:
    library.take_buffer()
    library.take_buffer()


def main() -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() in (1, 2):
        fetch_shard(int(sys.argv[1]))
    if dist.get_rank() == 3:
        fill_buffer(ctypes.CDLL(sys.argv[2]))
    dist.all_reduce(torch.ones(4))


main()
