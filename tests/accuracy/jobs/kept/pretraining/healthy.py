"""A multilingual run as it should be: one rank has the long documents, rank 0 uploads checkpoints."""

import argparse
import http.client
import io
import os
import random
import unicodedata
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PORT_FILE = os.path.join(os.environ["OUT_DIR"], "bucket.port")
PART = 256 << 10


class Documents:
    """Cleans text while it is read; those of the crawl are much longer than all others."""

    def __init__(self, rank: int, crawl: bool):
        self.random = random.Random(rank)
        self.length = 5_000_000 if crawl else 300

    def clean(self, text: str) -> str:
        kept = [
            c
            for c in unicodedata.normalize("NFKC", text)
            if not unicodedata.category(c).startswith("C")
        ]
        words = "".join(kept).split(" ")
        return " ".join(w.casefold() for w in words if w)

    def __iter__(self):
        letters = "abcdefghijklmnop \u00c4\u00d6\u0130\u03a9"
        while True:
            text = "".join(self.random.choices(letters, k=self.length))
            ids = [ord(c) % 128 for c in self.clean(text)]
            yield torch.tensor(ids[:64])


class MultipartUpload:
    def __init__(self, port: int, key: str):
        self.connection, self.key = (
            http.client.HTTPConnection("127.0.0.1", port, blocksize=32768),
            key,
        )

    def send(self, data: memoryview) -> None:
        parts = (len(data) + PART - 1) // PART
        for number in range(parts):
            piece = bytes(data[number * PART : (number + 1) * PART])
            self.connection.request("PUT", f"/{self.key}?partNumber={number + 1}", piece)
            self.connection.getresponse().read()
            print(f"uploaded part {number + 1}/{parts}", flush=True)


class Run:
    def __init__(self, args: argparse.Namespace):
        self.args, self.rank = args, dist.get_rank()
        self.net = nn.Sequential(nn.Embedding(128, 16), nn.Flatten(), nn.Linear(16 * 64, 8))
        self.model = DDP(self.net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.documents = iter(Documents(self.rank, crawl=args.what == "crawl" and self.rank == 2))

    def step(self) -> float:
        ids = next(self.documents)
        padded = nn.functional.pad(ids, (0, 64 - len(ids))).unsqueeze(0)
        loss = self.model(padded).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def checkpoint(self, step: int) -> None:
        dist.barrier()
        if self.rank == 0:
            out = io.BytesIO()
            torch.save({"net": self.net.state_dict(), "moments": torch.randn(12_000_000)}, out)
            print(f"uploading checkpoint {step}", flush=True)
            MultipartUpload(int(services.wait_for(PORT_FILE)), f"step{step}").send(out.getbuffer())
        dist.barrier()

    def train(self) -> None:
        for step in range(1, 100_000):
            loss = self.step()
            if self.rank == 0 and (step % 3 == 0 or self.args.what == "crawl"):
                print(f"step {step} loss {loss:.4f}", flush=True)
            if self.args.what == "upload" and step % 20 == 0:
                self.checkpoint(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["crawl", "upload"])
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    if dist.get_rank() == 0:
        services.start("gateway", PORT_FILE, "throttled")
    Run(args).train()


if __name__ == "__main__":
    main()
