"""Multi-node data parallel pretraining: overlapped bucket reductions, throughput log."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Throughput:
    def __init__(self, every: int):
        self.every, self.steps, self.since = every, 0, time.monotonic()

    def tick(self, tokens: int) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            seconds = time.monotonic() - self.since
            self.since = time.monotonic()
            if dist.get_rank() == 0:
                print(
                    f"step {self.steps}: {self.every * tokens / seconds:.0f} tokens/s", flush=True
                )


class Decoder(nn.Module):
    def __init__(self, width: int = 256, depth: int = 6):
        super().__init__()
        self.embed = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.GELU(),
                nn.Linear(2 * width, width),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


class Pretraining:
    def __init__(self) -> None:
        torch.manual_seed(int(os.environ["RANK"]))
        self.model = DistributedDataParallel(Decoder(), bucket_cap_mb=1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.throughput = Throughput(every=2)

    def batch(self) -> torch.Tensor:
        return torch.randint(0, 512, (4, 33))

    def step(self) -> None:
        rows = self.batch()
        logits = self.model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.throughput.tick(rows.numel())

    def run(self) -> None:
        while True:
            self.step()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Pretraining().run()


if __name__ == "__main__":
    main()
