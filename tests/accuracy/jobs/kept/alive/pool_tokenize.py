"""Rank 0 tokenizes the corpus with a pool of processes; the others wait for it in a barrier.

pool_tokenize.py work|lost

work: it takes its minutes; all results come at the end, as pool.map gives them.
lost: a worker is killed over a huge document, as for memory; the pool starts another one.
"""

import collections
import datetime
import json
import multiprocessing
import os
import random
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(os.environ["OUT_DIR"]) / "corpus"
SHARDS = {"work": 400, "lost": 8}
DOCUMENTS = {"work": 60, "lost": 6}
HUGE = 5
"""Number of the shard with the huge document."""


def write_corpus(count: int, documents: int) -> list[Path]:
    """Shards of JSON lines, as a crawler has left them."""
    chosen, paths = random.Random(11), []
    FOLDER.mkdir()
    syllables = ["ka", "to", "mi", "ru", "sen", "da", "lo", "vi", "ne", "po", "sha", "gri"]
    for number in range(count):
        path = FOLDER / f"shard-{number:04d}.jsonl"
        with path.open("w") as file:
            for _ in range(documents):
                words = ("".join(chosen.choices(syllables, k=4)) for _ in range(120))
                file.write(json.dumps({"text": " ".join(words)}) + "\n")
        paths.append(path)
    return paths


class Bpe:
    """Merges the most frequent pairs of a document until none is left that is frequent."""

    def __init__(self, rounds: int = 40) -> None:
        self.rounds = rounds

    @staticmethod
    def merge(symbols: list[str], pair: tuple[str, str]) -> list[str]:
        """The symbols with that pair as one."""
        out, place = [], 0
        while place < len(symbols):
            if tuple(symbols[place : place + 2]) == pair:
                out.append("".join(pair))
                place += 2
            else:
                out.append(symbols[place])
                place += 1
        return out

    def encode(self, text: str) -> list[str]:
        """Tokens of one document."""
        symbols = list(text)
        for _ in range(self.rounds):
            pairs = collections.Counter(zip(symbols, symbols[1:], strict=False))
            pair, count = pairs.most_common(1)[0]
            if count < 3:
                break
            symbols = self.merge(symbols, pair)
        return symbols


def tokenize_shard(path: Path) -> int:
    """In a worker: write the tokens of a shard beside it; how many these are."""
    if int(os.environ.get("HUGE_SHARD", "-1")) == int(path.stem.split("-")[1]):
        os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does for memory
    bpe, total = Bpe(), 0
    with path.open() as source, path.with_suffix(".tokens").open("w") as target:
        for line in source:
            tokens = bpe.encode(json.loads(line)["text"])
            target.write(" ".join(map(str, map(len, tokens))) + "\n")
            total += len(tokens)
    if "HUGE_SHARD" in os.environ:
        print(f"{path.stem}: {total} tokens", flush=True)
    return total


def tokenize_corpus(mode: str) -> int:
    """All shards, on two processes."""
    paths = write_corpus(SHARDS[mode], DOCUMENTS[mode])
    if mode == "lost":
        os.environ["HUGE_SHARD"] = str(HUGE)
    print(f"tokenizing {len(paths)} shards", flush=True)
    with multiprocessing.Pool(2) as pool:
        return sum(pool.map(tokenize_shard, paths, chunksize=1))


def main(mode: str) -> None:
    """Warm up, tokenize, train."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    tokens = torch.zeros(1)
    dist.all_reduce(tokens)
    if rank == 0:
        tokens.fill_(tokenize_corpus(mode))
    dist.barrier()
    dist.broadcast(tokens, src=0)
    for step in range(1000):
        dist.all_reduce(tokens)
        if rank == 0 and step % 100 == 0:
            print(f"step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
