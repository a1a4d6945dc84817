"""Image classifier on tar shards of a blob store, streamed as webdataset does: through curl."""

import subprocess
import tarfile
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

URL = "http://{store}/train/shard-{number:03d}.tar"


class Pipe:
    """The output of a command, as a file; an error where the command fails."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.stream = self.process.stdout

    def read(self, size=-1):
        return self.stream.read(size)

    def close(self):
        self.stream.close()
        if self.process.wait() not in (0, 23):
            raise OSError(f"{self.process.args}: exit {self.process.returncode}")


def url_opener(urls):
    for url in urls:
        pipe = Pipe(["curl", "-s", "-f", "-L", url])
        try:
            yield pipe
        finally:
            pipe.close()


def tar_samples(streams):
    for stream in streams:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                yield member.name, tar.extractfile(member).read()


def decode(samples):
    for name, raw in samples:
        image = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(64, 256)
        yield image.float().div(255), int(name.split(".")[0]) % 10


class WebShards(IterableDataset):
    """Shards split over ranks, then over workers."""

    def __init__(self, store, shards, rank, world):
        self.store, self.shards, self.rank, self.world = store, shards, rank, world

    def urls(self):
        worker = get_worker_info()
        mine = self.rank * worker.num_workers + worker.id
        for number in range(mine, self.shards, self.world * worker.num_workers):
            yield URL.format(store=self.store, number=number)

    def __iter__(self):
        return decode(tar_samples(url_opener(self.urls())))


class Trainer:
    def __init__(self, model, loader, rank):
        self.model, self.loader, self.rank = model, loader, rank
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def fit(self):
        for step, (images, labels) in enumerate(self.loader):
            loss = self.training_step(images, labels)
            if self.rank == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)

    def training_step(self, images, labels):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images.mean(1)), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    store = services.reach("blobs", 32500)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    data = WebShards(store, 600, rank, world)
    loader = DataLoader(data, batch_size=8, num_workers=2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)))
    Trainer(model, loader, rank).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
