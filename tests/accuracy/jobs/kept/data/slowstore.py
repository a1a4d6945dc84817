"""Speech pretraining; clips come one by one from object storage, part of it a cold tier."""

import http.client
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CLIPS_A_BATCH = 48


class ObjectStore:
    """A connection kept for all requests of a process."""

    def __init__(self, host):
        self.host = host
        self.connection = None

    def get(self, key):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.host, timeout=120)
        self.connection.request("GET", "/" + key)
        response = self.connection.getresponse()
        if response.status != 200:
            raise OSError(f"{key}: {response.status} {response.reason}")
        return response.read()


class Clips(Dataset):
    """The manifest of one rank: keys, of which the older have been moved to the cold tier."""

    def __init__(self, host, rank, batches=200):
        self.store = ObjectStore(host)
        self.keys = [self._key(rank, n) for n in range(batches * CLIPS_A_BATCH)]

    @staticmethod
    def _key(rank, n):
        tier = "cold" if rank == 2 and n >= 6 * CLIPS_A_BATCH else "hot"
        return f"speech/{tier}/{rank}/{n:07d}.pcm"

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        raw = self.store.get(self.keys[index])
        wave = torch.frombuffer(bytearray(raw), dtype=torch.int16).float()
        return wave.view(64, 512).mean(1) / 32768


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(64, 32)
        self.decode = nn.Linear(32, 64)

    def forward(self, waves):
        return self.decode(torch.relu(self.encode(waves)))


def epoch(model, loader, optimizer, rank):
    for step, waves in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(waves), waves)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)


def main():
    host = services.reach("blobs", 32510)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    loader = DataLoader(Clips(host, rank), batch_size=CLIPS_A_BATCH, num_workers=2)
    model = DistributedDataParallel(Encoder())
    epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
