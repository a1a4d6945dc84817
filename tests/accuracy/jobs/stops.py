"""Ranks that stop by what each finds for itself, and weights that only rank 0 fetches.

stops.py alone   rank 1 is the first to be patient no longer, and leaves the loop
stops.py fetch   rank 0 reads weights from a slow server while the others wait for them
"""

import multiprocessing
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
import torch.distributed as dist
from torch import nn

LEARNS = 6
PIECE = bytes(4096)


class Patience:
    """Stops after some steps without a better loss."""

    def __init__(self, steps):
        self.steps, self.best, self.waited = steps, float("inf"), 0

    def gone(self, loss):
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        return self.waited >= self.steps


class Trainer:
    def __init__(self, rank):
        self.rank, self.done, self.step = rank, False, 0
        self.net = nn.Linear(16, 1)
        self.patience = Patience(3)

    def average(self):
        for one in self.net.parameters():
            dist.all_reduce(one.grad)

    def fit(self):
        while not self.done:
            self.step += 1
            loss = self.net(torch.randn(4, 16)).pow(2).mean()
            self.net.zero_grad()
            loss.backward()
            self.average()
            found = 1.0 / (min(self.step, LEARNS) if self.rank == 1 else self.step)
            self.done = self.patience.gone(found)
            print(f"step {self.step}", flush=True)
            time.sleep(0.2)
        every = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(every, torch.tensor([self.patience.best]))


class Slow(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(PIECE)
            time.sleep(0.2)

    def log_message(self, *_):
        pass


def fetch(port):
    count = 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/weights") as answer:
        while answer.read(len(PIECE)):
            count += 1
            if count == 40:
                print("some of the weights are there", flush=True)


def serve(ports):
    """In a process of its own, as a server is: what it sends is no work of the rank."""
    server = HTTPServer(("127.0.0.1", 0), Slow)
    ports.put(server.server_port)
    server.serve_forever()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if sys.argv[1] == "alone":
        Trainer(rank).fit()
    elif rank == 0:
        ports = multiprocessing.Queue()
        multiprocessing.Process(target=serve, args=(ports,), daemon=True).start()
        fetch(ports.get())
    dist.barrier()


if __name__ == "__main__":
    main()
