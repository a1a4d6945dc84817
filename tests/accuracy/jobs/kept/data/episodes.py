"""Each round rank 0 downloads episodes over a slow line and hands them on; rounds are short."""

import http.client
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Archive:
    """Episodes by number, at the pace of the archive."""

    def __init__(self, address, timeout=300):
        self.address, self.timeout = address, timeout

    def episode(self, number):
        connection = http.client.HTTPConnection(self.address, timeout=self.timeout)
        try:
            connection.request("GET", f"/cold/episode-{number}")
            return connection.getresponse().read()
        finally:
            connection.close()


class Rounds:
    """The same episodes for all ranks."""

    def __init__(self, archive, per_round):
        self.archive, self.per_round = archive, per_round
        self.number = 0

    def next(self):
        flat = torch.empty(self.per_round * 65536, dtype=torch.uint8)
        if self.archive is not None:
            for n in range(self.per_round):
                raw = self.archive.episode(self.number)
                part = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
                flat[n * 65536 : (n + 1) * 65536] = part
                self.number += 1
        dist.broadcast(flat, src=0)
        return TensorDataset(flat.view(-1, 256).float() / 255)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 256))

    def forward(self, x):
        return self.layers(x)


def learn(model, optimizer, data):
    losses = []
    for (states,) in DataLoader(data, batch_size=128, shuffle=True, num_workers=1):
        loss = (model(states) - states).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main():
    address = services.reach("blobs", 32570)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    rounds = Rounds(Archive(address) if rank == 0 else None, per_round=2)
    model = DistributedDataParallel(Policy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(10_000):
        loss = learn(model, optimizer, rounds.next())
        if rank == 0:
            print(f"round {number} loss {loss:.4f}", flush=True)
        dist.barrier()


if __name__ == "__main__":
    main()
