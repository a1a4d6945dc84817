"""Speech recognition with batches of like length, padded in the workers."""

import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

MELS = 80


@dataclass
class Batch:
    frames: torch.Tensor
    lengths: torch.Tensor


class Utterances(Dataset):
    """Lengths are known from the manifest; features are made on the fly."""

    def __init__(self, rank, count=8000):
        generator = torch.Generator().manual_seed(rank)
        self.lengths = torch.randint(20, 60, (count,), generator=generator).tolist()
        if rank == 1:
            # One source was never cut into sentences: whole lectures.
            self.lengths[64:] = [4000 + n % 100 for n in range(count - 64)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(self.lengths[index], MELS)


class Buckets:
    """A batch sampler: neighbours in the manifest are of like length."""

    def __init__(self, data, size):
        self.data, self.size = data, size

    def __iter__(self):
        for start in range(0, len(self.data) - self.size + 1, self.size):
            window = list(range(start, start + self.size))
            yield sorted(window, key=self.data.lengths.__getitem__)

    def __len__(self):
        return len(self.data) // self.size


def collate(utterances):
    lengths = torch.tensor([len(one) for one in utterances])
    return Batch(pad_sequence(utterances, batch_first=True), lengths)


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(MELS, 32)
        self.classify = nn.Linear(32, 40)

    def forward(self, batch):
        hidden = torch.relu(self.project(batch.frames)).mean(1)
        return self.classify(hidden)


class Recipe:
    def __init__(self, rank):
        data = Utterances(rank)
        options = {"collate_fn": collate, "num_workers": 2, "prefetch_factor": 2}
        self.loader = DataLoader(data, batch_sampler=Buckets(data, 8), **options)
        self.model = DistributedDataParallel(Acoustic())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.rank = rank

    def run(self):
        for step, batch in enumerate(self.loader):
            logits = self.model(batch)
            loss = nn.functional.cross_entropy(logits, batch.lengths % 40)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Recipe(dist.get_rank()).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
