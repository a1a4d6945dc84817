"""Checkpoint upload: rank 0 sends parts over a narrow line to the object store, the others wait in a barrier."""

import hashlib
import os
import socket
import socketserver
import time
from datetime import timedelta
from multiprocessing import get_context

import torch
import torch.distributed as dist
from torch import nn

PART = 64 << 10


class Bucket(socketserver.StreamRequestHandler):
    """The object store: takes about 40 kB/s, and answers each part with its digest."""

    def handle(self) -> None:
        while True:
            left, digest = PART, hashlib.sha256()
            while left:
                piece = self.rfile.read1(min(4096, left))
                if not piece:
                    return
                digest.update(piece)
                left -= len(piece)
                time.sleep(0.1)
            self.wfile.write(digest.hexdigest().encode() + b"\n")


def serve(ready) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Bucket) as server:
        ready.put(server.server_address[1])
        server.serve_forever()


class Uploader:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        self.replies = self.socket.makefile("rb")

    def part(self, body: bytes) -> str:
        self.socket.sendall(body)
        return self.replies.readline().decode().strip()

    def upload(self, path: str) -> None:
        size, sent = os.path.getsize(path), 0
        with open(path, "rb") as file:
            while body := file.read(PART):
                digest = self.part(body.ljust(PART, b"\0"))
                sent += len(body)
                print(
                    f"upload {os.path.basename(path)}: {sent >> 10}/{size >> 10} KiB {digest[:8]}",
                    flush=True,
                )


class Trainer:
    def __init__(self, rank: int, uploader: Uploader | None) -> None:
        self.rank, self.uploader = rank, uploader
        self.model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 16))

    def train(self, steps: int) -> None:
        for step in range(steps):
            self.model(torch.randn(2, 1024)).sum().backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
            if self.rank == 0:
                print(f"step {step}", flush=True)

    def save(self, name: str) -> None:
        if self.uploader:
            path = f"{os.environ['OUT_DIR']}/{name}.pt"
            torch.save(self.model.state_dict(), path)
            self.uploader.upload(path)
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, uploader = dist.get_rank(), None
    if rank == 0:
        context = get_context("spawn")
        ports = context.Queue()
        context.Process(target=serve, args=(ports,), daemon=True).start()
        uploader = Uploader(ports.get())
    trainer = Trainer(rank, uploader)
    for epoch in range(100):
        trainer.train(4)
        trainer.save(f"epoch{epoch}")


if __name__ == "__main__":
    main()
