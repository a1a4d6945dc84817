"""Training that uploads its checkpoints. save_upload.py MODE PORT: tool (a command does), direct (rank 0 does, with a limit of its rate)."""

import http.client
import os
import subprocess
import sys
import time
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn

MODE, PORT = sys.argv[1], int(sys.argv[2])


def average_gradients(model: nn.Module) -> None:
    world = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


class Uploader:
    def upload(self, path: str, key: str) -> None:
        raise NotImplementedError


class CommandUploader(Uploader):
    """By the command line tool of the store."""

    def upload(self, path: str, key: str) -> None:
        tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "objcp.py")
        subprocess.run([sys.executable, tool, path, f"127.0.0.1:{PORT}", key], check=True)


class DirectUploader(Uploader):
    """In pieces, never more than a part of the line."""

    PIECE, PER_SECOND = 65536, 4

    def upload(self, path: str, key: str) -> None:
        size = os.path.getsize(path)
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        connection.putrequest("PUT", key)
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        with open(path, "rb") as file:
            sent = 0
            while piece := file.read(self.PIECE):
                connection.send(piece)
                sent += len(piece)
                if sent // self.PIECE % 20 == 0:
                    print(f"upload {key}: {sent / size:.1%}", flush=True)
                time.sleep(1 / self.PER_SECOND)
        connection.getresponse().read()


class Checkpointer:
    def __init__(self, rank: int, every: int, uploader: Uploader) -> None:
        self.rank, self.every, self.uploader = rank, every, uploader
        self.folder = os.environ["OUT_DIR"]

    def save(self, step: int, model: nn.Module) -> None:
        if self.rank == 0:
            path = os.path.join(self.folder, f"step{step}.pt")
            state = {"model": model.state_dict(), "step": step}
            if MODE == "direct":
                state["moments"] = torch.zeros(24_000_000)
            torch.save(state, path)
            print(f"uploading {path}", flush=True)
            self.uploader.upload(path, f"/ckpt/step{step}.pt")
            os.remove(path)
        dist.barrier()

    def maybe(self, step: int, model: nn.Module) -> None:
        if step and step % self.every == 0:
            self.save(step, model)


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if rank == 0:
        services.object_store(PORT, "mute" if MODE == "tool" else "sink")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    checkpointer = Checkpointer(rank, 12, CommandUploader() if MODE == "tool" else DirectUploader())
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).pow(2).mean().backward()
        average_gradients(model)
        optimizer.step()
        checkpointer.maybe(step, model)
        time.sleep(0.15)


if __name__ == "__main__":
    main()
