"""An asynchronous parameter server: rank 0 serves parameters from a pool of threads and already waits at the
end of the job; the trainers compute for long between two pushes and come to that end much later.
"""

import concurrent.futures
import multiprocessing.connection as mpc
import os
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
from common import join, say
from torch import nn

ADDRESS = ("127.0.0.1", 29240)
KEY = b"parameters"


class Server:
    """Holds the parameters; one thread of the pool per trainer."""

    def __init__(self, size: int, trainers: int) -> None:
        self.values = np.zeros(size, dtype=np.float32)
        self.lock = threading.Lock()
        self.listener = mpc.Listener(ADDRESS, authkey=KEY)
        self.pool = concurrent.futures.ThreadPoolExecutor(trainers, "serve")
        self.trainers = trainers
        self.pushes = 0

    def start(self) -> None:
        for _ in range(self.trainers):
            self.pool.submit(self.serve, self.listener.accept())

    def serve(self, connection: mpc.Connection) -> None:
        with connection:
            while True:
                try:
                    verb, payload = connection.recv()
                except EOFError:
                    return
                with self.lock:
                    if verb == "push":
                        self.values -= 0.01 * payload
                        self.pushes += 1
                    connection.send(self.values)


class Trainer:
    def __init__(self, rank: int) -> None:
        torch.manual_seed(rank)
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 3, 3, padding=1)
        )
        self.connection = self._connect()

    def _connect(self) -> mpc.Connection:
        for _ in range(100):
            try:
                return mpc.Client(ADDRESS, authkey=KEY)
            except ConnectionRefusedError:
                time.sleep(0.2)
        raise SystemExit("no parameter server")

    def gradients(self, images: int) -> np.ndarray:
        """Those of many small batches, summed up: communication is dear here."""
        self.net.zero_grad()
        for _ in range(images):
            batch = torch.randn(4, 3, 96, 96)
            (self.net(batch) - batch).pow(2).mean().backward()
        return torch.cat([p.grad.flatten() for p in self.net.parameters()]).numpy()

    def exchange(self, verb: str, payload: np.ndarray | None = None) -> None:
        self.connection.send((verb, payload))
        values = torch.from_numpy(self.connection.recv())
        nn.utils.vector_to_parameters(values, self.net.parameters())


def main() -> None:
    rank, world = join()
    size = 2 * (24 * 3 * 9) + 24 + 3
    if rank == 0:
        server = Server(size, world - 1)
        dist.barrier()
        server.start()
        say(f"serving {size} parameters to {world - 1} trainers in pid {os.getpid()}")
    else:
        dist.barrier()
        trainer = Trainer(rank)
        trainer.exchange("pull")
        for number in range(60):
            trainer.exchange("push", trainer.gradients(400 * rank))
            say(f"push {number} done")
    dist.barrier()  # everybody is through
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
