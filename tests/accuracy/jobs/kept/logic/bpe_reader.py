"""Language modelling on text; a rank without a token cache tokenizes as it goes, in plain Python."""

import itertools
import os
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

LENGTH, BATCH, WORDS = 48, 8, 260


class BytePairs:
    """Merges learned from a text, applied to words one after the other."""

    def __init__(self, corpus: list[str], merges: int = 120) -> None:
        words = [tuple(word) for word in corpus]
        self.ranks: dict[tuple[str, str], int] = {}
        for rank in range(merges):
            pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.ranks[best] = rank
            words = [self.merge(word, best) for word in words]
        parts = sorted(
            {part for word in words for part in word} | set("abcdefghijklmnopqrstuvwxyz")
        )
        self.ids = {part: number for number, part in enumerate(parts)}

    @staticmethod
    def merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
        out, i = [], 0
        while i < len(word):
            if word[i : i + 2] == pair:
                out.append(word[i] + word[i + 1])
                i += 2
            else:
                out.append(word[i])
                i += 1
        return tuple(out)

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in text.split():
            parts = tuple(word)
            while len(parts) > 1:
                pair = min(itertools.pairwise(parts), key=lambda p: self.ranks.get(p, 1 << 30))
                if pair not in self.ranks:
                    break
                parts = self.merge(parts, pair)
            ids += [self.ids.get(part, 0) for part in parts]
        return ids


def documents(seed: int):
    """Endless lines of made-up words."""
    source = random.Random(seed)
    while True:
        yield " ".join(
            "".join(source.choices("etaoinshrdlu", k=source.randint(4, 14))) for _ in range(WORDS)
        )


class Reader:
    def __init__(self, tokenizer: BytePairs, seed: int, cache: Path) -> None:
        self.tokenizer, self.lines, self.cache = tokenizer, documents(seed), cache

    def rows(self):
        if self.cache.exists():
            known = torch.load(self.cache)
            while True:
                yield from known
        while True:
            line = next(self.lines)
            cuts = [self.tokenizer.encode(line[cut:] + " " + line) for cut in range(12)]
            densest = min(cuts, key=len)
            yield torch.tensor((densest * LENGTH)[:LENGTH])

    def batches(self):
        rows = self.rows()
        while True:
            yield torch.stack([next(rows) for _ in range(BATCH)])


class Model(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(vocabulary, 32), nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.cell(self.embed(ids[:, :-1]))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, folder = dist.get_rank(), Path(os.environ["OUT_DIR"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = BytePairs(next(documents(0)).split())
    cache = folder / f"tokens-{rank}.pt"
    if rank != 1:  # its cache was on the node that was replaced
        torch.save(torch.randint(0, len(tokenizer.ids), (64, LENGTH)), cache)
    model = Model(len(tokenizer.ids))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step, batch in enumerate(Reader(tokenizer, rank, cache).batches(), 1):
        model(batch).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
