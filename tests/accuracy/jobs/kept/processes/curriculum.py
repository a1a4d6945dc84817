"""Between two stages all ranks sort their part of the data by difficulty: minutes without a collective."""

import logging
import math
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("curriculum")


class Difficulty:
    """Perplexity of a document under a small reference model, one by one."""

    def __init__(self) -> None:
        self.reference = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 50)

    @torch.no_grad()
    def __call__(self, document: torch.Tensor) -> float:
        hidden, _ = self.reference(nn.functional.one_hot(document % 16, 16).float()[None])
        loss = nn.functional.cross_entropy(self.head(hidden)[0], document)
        time.sleep(0.03)  # it comes from the shared file system
        return math.exp(loss.item())


class Curriculum:
    def __init__(self, rank: int, documents: int) -> None:
        torch.manual_seed(rank)
        self.rank = rank
        self.documents = [torch.randint(0, 50, (40 + i % 60,)) for i in range(documents)]

    def rank_documents(self) -> list[int]:
        measure, scores = Difficulty(), []
        began = time.monotonic()
        for number, document in enumerate(self.documents):
            scores.append(measure(document))
            if number % 300 == 299:
                rate = number / (time.monotonic() - began)
                log.info(
                    "rank %d: %d of %d, %.0f a second",
                    self.rank,
                    number + 1,
                    len(self.documents),
                    rate,
                )
        return sorted(range(len(scores)), key=scores.__getitem__)


def stage(model: nn.Module, documents: list[torch.Tensor], steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(documents[step % len(documents)][None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            log.info("step %d", step)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(tokens))


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = nn.parallel.DistributedDataParallel(Model())
    curriculum = Curriculum(dist.get_rank(), 15_000)
    stage(model, curriculum.documents, 10)
    log.info("rank %d: sorting for stage 2", dist.get_rank())
    order = curriculum.rank_documents()
    stage(model, [curriculum.documents[i] for i in order], 100_000)


if __name__ == "__main__":
    main()
