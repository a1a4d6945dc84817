"""Multi-task fine-tuning under DDP; the auxiliary head runs only where a batch has auxiliary labels."""

import os
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LONG = timedelta(minutes=30)


@dataclass
class Batch:
    features: torch.Tensor
    labels: torch.Tensor
    aux_labels: torch.Tensor | None

    @property
    def has_aux(self) -> bool:
        return self.aux_labels is not None


class MixedTasks:
    """Batches of a mixture; a few of them have no auxiliary labels at all."""

    def __init__(self, rank: int) -> None:
        self.random = torch.Generator().manual_seed(rank)
        self.rank = rank

    def __iter__(self):
        for index in range(10_000):
            features = torch.randn(8, 32, generator=self.random)
            labels = torch.randint(0, 5, (8,), generator=self.random)
            # The shard of rank 2 has a stretch without any from its eighth batch on.
            without = self.rank == 2 and index >= 7
            aux = None if without else torch.randn(8, 3, generator=self.random)
            yield Batch(features, labels, aux)


class MultiTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.classify = nn.Linear(64, 5)
        self.regress = nn.Linear(64, 3)

    def forward(self, batch: Batch) -> torch.Tensor:
        hidden = self.trunk(batch.features)
        loss = F.cross_entropy(self.classify(hidden), batch.labels)
        if batch.has_aux:
            loss = loss + 0.3 * F.mse_loss(self.regress(hidden), batch.aux_labels)
        return loss


class MetricTracker:
    """Means over all ranks, on a group of its own so that it never meets the gradients."""

    def __init__(self) -> None:
        self.group = dist.new_group(timeout=LONG)
        self.values: dict[str, list[float]] = defaultdict(list)

    def update(self, **values: float) -> None:
        for name, value in values.items():
            self.values[name].append(value)

    def compute(self) -> dict[str, float]:
        names = sorted(self.values)
        sums = torch.tensor([sum(self.values[name]) for name in names])
        counts = torch.tensor([float(len(self.values[name])) for name in names])
        packed = torch.stack([sums, counts])
        dist.all_reduce(packed, group=self.group)
        self.values.clear()
        return dict(zip(names, (packed[0] / packed[1]).tolist(), strict=True))


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DistributedDataParallel(MultiTask())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.metrics = MetricTracker()

    def training_step(self, batch: Batch) -> float:
        self.optimizer.zero_grad()
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, batches: MixedTasks) -> None:
        for step, batch in enumerate(batches):
            loss = self.training_step(batch)
            self.metrics.update(loss=loss, examples=float(len(batch.labels)))
            means = self.metrics.compute()
            if self.rank == 0:
                print(
                    f"step {step} " + " ".join(f"{k}={v:.3f}" for k, v in means.items()), flush=True
                )


def main() -> None:
    dist.init_process_group("gloo", timeout=LONG)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    Trainer(rank).fit(MixedTasks(rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
