"""Asynchronous training with a parameter server over torch.distributed.rpc.

Rank 0 is the parameter server, all others are trainers.
"""

import os
import threading
import time

import torch
import torch.distributed.rpc as rpc

SERVER = "ps"


def name_of(rank):
    """How a rank is called over rpc."""
    return SERVER if rank == 0 else f"trainer{rank}"


class ParameterServer:
    """Holds the weights; applies gradients as they come."""

    instance = None

    def __init__(self, size):
        self.lock = threading.Lock()
        self.weights = torch.zeros(size)
        self.updates = 0

    @classmethod
    def shared(cls):
        if cls.instance is None:
            cls.instance = cls(512)
        return cls.instance


def pull():
    """Runs on the server: the weights."""
    server = ParameterServer.shared()
    with server.lock:
        return server.weights.clone()


def push(gradient, rate):
    """Runs on the server: apply a gradient."""
    server = ParameterServer.shared()
    with server.lock:
        server.weights -= rate * gradient
        server.updates += 1
        return server.updates


def options():
    """One thread pool per process; slow networks are met with patience."""
    return rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=1800)


def join(rank, world_size):
    """Meet all others."""
    print(f"{name_of(rank)} joining ({world_size} expected)", flush=True)
    rpc.init_rpc(name_of(rank), rank=rank, world_size=world_size, rpc_backend_options=options())
    print(f"{name_of(rank)} joined", flush=True)


def train(rank):
    """The loop of a trainer."""
    target = torch.randn(512)
    for step in range(100_000):
        weights = rpc.rpc_sync(SERVER, pull)
        gradient = 2 * (weights - target)
        done = rpc.rpc_sync(SERVER, push, args=(gradient, 0.01))
        if step % 50 == 0:
            print(f"trainer {rank} step {step}: {done} updates", flush=True)
        time.sleep(0.05)


def main():
    """Become server or trainer."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(rank, world_size)
    if rank == 0:
        ParameterServer.shared()
    else:
        train(rank)
    rpc.shutdown()


if __name__ == "__main__":
    main()
