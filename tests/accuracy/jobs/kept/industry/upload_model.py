"""Trains a little, then the first rank uploads the model to a store that is far away; the others wait."""

import http.client
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

PORT = int(os.environ.get("STORE_PORT", "35510"))
PART = 5 << 20


def serve(rate: int) -> None:
    """The store: takes what is put into it, as fast as its line is."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    server.bind(("127.0.0.1", PORT))
    server.listen()
    while True:
        client, _ = server.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1)
        left = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while left > 0 and (got := client.recv(min(left, rate // 10))):
            left -= len(got)
            time.sleep(len(got) / rate)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        client.close()


class StoreClient:
    """Uploads files in parts."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def put_part(self, key: str, number: int, data: bytes) -> None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        connection.request("PUT", f"/models/{key}?partNumber={number}", body=data)
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"part {number}: {response.status}")
        connection.close()

    def upload(self, path: Path) -> None:
        size, sent = path.stat().st_size, 0
        with path.open("rb") as file:
            while data := file.read(PART):
                self.put_part(path.name, sent // PART + 1, data)
                sent += len(data)
                print(f"uploaded {sent / 2**20:.0f} of {size / 2**20:.0f} MiB", flush=True)


class Trainer:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self) -> float:
        loss = self.model(torch.randn(4, 2048)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss.item()

    def publish(self, folder: Path) -> None:
        if self.rank == 0:
            path = folder / "model.pt"
            torch.save(self.model.state_dict(), path)
            print(f"publishing {path.name}", flush=True)
            StoreClient("127.0.0.1", PORT).upload(path)
        dist.barrier()


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        return serve(rate=400_000)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    if dist.get_rank() == 0:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.endswith(("RANK", "WORLD_SIZE"))
        }
        subprocess.run(["setsid", "--fork", sys.executable, __file__, "serve"], env=env, check=True)
        time.sleep(1)
    trainer = Trainer()
    for epoch in range(100):
        for step in range(3):
            loss = trainer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss:.4f}", flush=True)
        trainer.publish(Path(os.environ["OUT_DIR"]))


if __name__ == "__main__":
    main()
