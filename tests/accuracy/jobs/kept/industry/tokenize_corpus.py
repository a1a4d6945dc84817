"""Prepares its corpus before it trains: every rank tokenizes its part with a pool of processes."""

import multiprocessing
import os
import random
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def corpus(part: int, chunks: int):
    """Chunks of text, as they come from the crawl."""
    rng = random.Random(part)
    words = ["".join(rng.choices(LETTERS, k=rng.randrange(2, 14))) for _ in range(4000)]
    for number in range(chunks):
        yield number, [" ".join(rng.choices(words, k=120)) for _ in range(40)]


class BytePairTokenizer:
    """Merges the pair of best rank, over and over."""

    def __init__(self, merges: int = 3000) -> None:
        rng = random.Random(7)
        symbols = list(LETTERS)
        self.ranks: dict[tuple[str, str], int] = {}
        while len(self.ranks) < merges:
            pair = (rng.choice(symbols), rng.choice(symbols))
            if pair not in self.ranks and len(pair[0] + pair[1]) < 8:
                self.ranks[pair] = len(self.ranks)
                symbols.append(pair[0] + pair[1])
        self.ids = {symbol: number for number, symbol in enumerate(symbols)}

    def pairs(self, parts: list[str]) -> list[tuple[int, int]]:
        ranked = ((self.ranks.get((a, b)), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
        return [(rank, i) for rank, i in ranked if rank is not None]

    def word(self, word: str) -> list[int]:
        parts = list(word)
        while found := self.pairs(parts):
            _, i = min(found)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[part] for part in parts]

    def encode(self, text: str) -> list[int]:
        return [token for word in text.split() for token in self.word(word)]


TOKENIZER: BytePairTokenizer


def initialize() -> None:
    global TOKENIZER
    TOKENIZER = BytePairTokenizer()


def tokenize_chunk(item: tuple[int, list[str]]) -> tuple[int, int]:
    number, texts = item
    return number, sum(len(TOKENIZER.encode(text)) for text in texts for _ in range(4))


class Progress:
    """A line now and then, as there is no terminal."""

    def __init__(self, rank: int, total: int) -> None:
        self.rank, self.total, self.started, self.told = rank, total, time.time(), 0

    def update(self, done: int, tokens: int) -> None:
        percent = 100 * done // self.total
        if percent >= self.told + 5 or done == 1:
            self.told = percent
            rate = tokens / (time.time() - self.started)
            print(
                f"[rank {self.rank}] tokenizing: {percent}% {rate:.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )


def build_dataset(rank: int, processes: int = 2, chunks: int = 3000) -> int:
    progress, tokens = Progress(rank, chunks), 0
    with multiprocessing.Pool(processes, initialize) as pool:
        for done, (_, count) in enumerate(
            pool.imap_unordered(tokenize_chunk, corpus(rank, chunks)), 1
        ):
            tokens += count
            progress.update(done, tokens)
    return tokens


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(hours=4))
    rank = int(os.environ["RANK"])
    tokens = build_dataset(rank)
    sizes: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(sizes, tokens)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    for step in range(sum(sizes)):
        model(torch.randn(8, 64)).sum().backward()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
