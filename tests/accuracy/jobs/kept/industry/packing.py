"""Language-model pre-training: documents of this rank's shard are split and packed into blocks on the fly."""

import datetime
import os
import random

import torch
import torch.distributed as dist
from torch import nn

BLOCK = 256
NEWLINE = 10
VOCAB = 320


class Shard:
    """Documents as token lists; a crawl of source code."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rng = random.Random(rank)

    def source_file(self, lines: int) -> list[int]:
        tokens: list[int] = []
        for _ in range(lines):
            tokens += [self.rng.randrange(32, VOCAB) for _ in range(self.rng.randrange(8, 60))]
            tokens.append(NEWLINE)
        return tokens

    def minified_file(self) -> list[int]:
        """A bundle of a web page: all of it in one line."""
        return [self.rng.randrange(32, VOCAB) for _ in range(90_000)]

    def documents(self):
        number = 0
        while True:
            number += 1
            if self.rank == 1 and number == 30:
                yield self.minified_file()
            else:
                yield self.source_file(self.rng.randrange(5, 60))


class Packer:
    """Cuts documents at ends of lines and fills blocks with the pieces."""

    def __init__(self, documents) -> None:
        self.documents = documents
        self.room: list[int] = []

    def cut_at_line(self, tokens: list[int], most: int) -> int:
        """Where the last line ends that still fits."""
        window = tokens[:most]
        for back, token in enumerate(reversed(window)):
            if token == NEWLINE:
                return most - back
        return 0

    def pieces(self, document: list[int]):
        """Pieces of a document that fit into a block each."""
        rest = document
        while len(rest) > BLOCK:
            cut = self.cut_at_line(rest, BLOCK)
            piece, rest = rest[:cut], rest[cut:]
            if piece:
                yield piece
        if rest:
            yield rest

    def blocks(self):
        for document in self.documents:
            for piece in self.pieces(document):
                if len(self.room) + len(piece) > BLOCK:
                    yield self.room + [0] * (BLOCK - len(self.room))
                    self.room = []
                self.room = self.room + piece


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 48)
        self.mix = nn.GRU(48, 48, batch_first=True)
        self.head = nn.Linear(48, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.mix(self.embed(tokens[:, :-1]))
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Trainer:
    def __init__(self, rank: int, world: int) -> None:
        torch.manual_seed(0)
        self.rank, self.world = rank, world
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.blocks = Packer(Shard(rank).documents()).blocks()

    def next_batch(self, size: int = 8) -> torch.Tensor:
        return torch.tensor([next(self.blocks) for _ in range(size)])

    def sync_gradients(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()

    def train(self, steps: int) -> None:
        for step in range(1, steps + 1):
            batch = self.next_batch()
            loss = self.model(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.sync_gradients()
            self.optimizer.step()
            if self.rank == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    Trainer(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])).train(100_000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
