"""Fine-tuning with saves in the background: before the next save, the last upload has to be done."""

import concurrent.futures
import http.client
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

PORT = 31030


def bucket() -> None:
    """Storage that takes what it is given, slowly."""
    listener = socket.create_server(("127.0.0.1", PORT), reuse_port=True)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    while True:
        client, _ = listener.accept()
        while client.recv(8192):
            time.sleep(0.1)


class Uploader:
    """Uploads files one after the other, in a thread."""

    def __init__(self) -> None:
        self.pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="upload")
        self.last: concurrent.futures.Future | None = None

    def _parts(self, size: int, part: int = 16384):
        for _ in range(size // part):
            yield b"w" * part

    def _connect(self) -> http.client.HTTPConnection:
        for _ in range(100):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", PORT)
                connection.connect()
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
                return connection
            except ConnectionRefusedError:
                time.sleep(0.2)
        raise ConnectionRefusedError(PORT)

    def _put(self, key: str, size: int) -> None:
        connection = self._connect()
        connection.putrequest("PUT", f"/bucket/{key}")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        for part in self._parts(size):
            connection.send(part)
        connection.getresponse()

    def submit(self, key: str, size: int) -> None:
        self.wait()
        self.last = self.pool.submit(self._put, key, size)

    def wait(self) -> None:
        if self.last is not None:
            self.last.result()


class LoRATrainer:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.a, self.b = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.zeros(2, 8))
        self.uploader = Uploader()

    def step(self) -> float:
        loss = (torch.randn(4, 8) @ self.a @ self.b - 1).pow(2).mean()
        for p, g in zip((self.a, self.b), torch.autograd.grad(loss, (self.a, self.b)), strict=True):
            dist.all_reduce(g)
            p.data -= 0.01 * g
        return loss.item()

    def run(self) -> None:
        for step in range(1, 1000):
            time.sleep(0.2)
            loss = self.step()
            if self.rank == 0:
                print(f"step {step} loss {loss:.3f}", flush=True)
                if step % 5 == 0:
                    print(f"checkpoint {step}: saving, previous upload first", flush=True)
                    self.uploader.submit(f"step-{step}.pt", 40 << 20)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    if dist.get_rank() == 0:
        clean = {
            k: v
            for k, v in os.environ.items()
            if "RANK" not in k and "WORLD" not in k and "TORCHELASTIC" not in k
        }
        subprocess.run(
            f"{sys.executable} {__file__} bucket </dev/null &", shell=True, env=clean, check=True
        )
    LoRATrainer().run()


if __name__ == "__main__":
    bucket() if sys.argv[1:] == ["bucket"] else main()
