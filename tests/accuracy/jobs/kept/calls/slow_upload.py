"""Trains, then the first rank hands the checkpoint to a gateway whose line is thin; the others wait."""

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

OUT = Path(os.environ["OUT_DIR"])
RATE = 400 << 10  # bytes a second that the gateway takes


def gateway():
    """The other end: takes what comes, no faster than the line behind it."""
    for port in range(37040, 37070):
        try:
            listener = socket.create_server(("127.0.0.1", port))
            break
        except OSError:
            continue
    (OUT / "gateway.new").write_text(str(port))
    (OUT / "gateway.new").rename(OUT / "gateway")
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        while data := connection.recv(1 << 16):
            time.sleep(len(data) / RATE)
        connection.close()


class Gateway:
    def __init__(self, port):
        self.port = port

    def upload(self, path, chunk=1 << 20):
        size = path.stat().st_size
        with socket.create_connection(("127.0.0.1", self.port)) as line, path.open("rb") as file:
            line.sendall(f"PUT {path.name} {size}\n".encode())
            sent = 0
            while data := file.read(chunk):
                line.sendall(data)
                sent += len(data)
        return sent


class Checkpointer:
    def __init__(self, rank):
        self.rank = rank

    def save(self, model, optimizer, step):
        if self.rank == 0:
            path = OUT / f"step{step}.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            print(f"uploading {path.name}, {path.stat().st_size >> 20} MiB", flush=True)
            sent = Gateway(int((OUT / "gateway").read_text())).upload(path)
            print(f"uploaded {sent} bytes", flush=True)
            path.unlink()
        dist.barrier()


def start_gateway():
    env = {k: v for k, v in os.environ.items() if "RANK" not in k}
    subprocess.run(["setsid", "--fork", sys.executable, __file__, "gateway"], env=env, check=True)
    while not (OUT / "gateway").exists():
        time.sleep(0.1)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    if rank == 0:
        start_gateway()
    model = torch.nn.Sequential(
        torch.nn.Linear(2048, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 2048)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    checkpoints = Checkpointer(rank)
    for step in range(100_000):
        loss = model(torch.randn(4, 2048)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 5 == 4:
            checkpoints.save(model, optimizer, step)


if __name__ == "__main__":
    gateway() if sys.argv[1:] == ["gateway"] else main()
