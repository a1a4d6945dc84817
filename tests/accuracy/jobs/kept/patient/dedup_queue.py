"""Deduplicates a corpus: ranks take shards off a common counter, the biggest comes last; whoever gets
that one works on while the others have nothing left and wait for the common statistics.
"""

import gc
import json
import os
import random
import re
import zlib

import torch
import torch.distributed as dist
from common import join, say

WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+(?:\.[0-9]+)?")
SYLLABLES = "ba be bi bo da de di do ka ke ki ko la le li lo ma me mi mo na ne ni no".split()
SHARDS = [300, 400, 500, 300, 400, 500, 400, 300, 600, 400_000]


def documents(shard: int):
    """Lines of a shard, as they come out of the crawl."""
    rng = random.Random(shard)
    for number in range(SHARDS[shard]):
        words = ["".join(rng.choices(SYLLABLES, k=3)) for _ in range(rng.randrange(60, 400))]
        yield json.dumps({"url": f"https://example.org/{shard}/{number}", "text": " ".join(words)})


class Sketches:
    """MinHash signatures, and the documents that share a band of one."""

    def __init__(self, hashes: int = 16, band: int = 4) -> None:
        self.seeds = [zlib.crc32(bytes([n])) for n in range(hashes)]
        self.band = band
        self.buckets: dict[tuple[int, ...], list[str]] = {}
        self.ordered: list[tuple[tuple[int, ...], int]] = []

    def sketch(self, text: str) -> list[int]:
        words = WORD.findall(text.lower())
        grams = {zlib.crc32(" ".join(words[i : i + 3]).encode()) for i in range(len(words))}
        return [min(gram ^ seed for gram in grams) for seed in self.seeds]

    def add(self, line: str) -> None:
        document = json.loads(line)
        signature = self.sketch(document["text"])
        for start in range(0, len(signature), self.band):
            key = (start, *signature[start : start + self.band])
            self.buckets.setdefault(key, []).append(document["url"])

    def settle(self) -> None:
        """Sort what there is and give memory back."""
        self.ordered = sorted((key, len(urls)) for key, urls in self.buckets.items())
        self.buckets = {key: urls for key, urls in self.buckets.items() if len(urls) < 9}
        gc.collect()

    @property
    def duplicates(self) -> int:
        return sum(len(urls) - 1 for urls in self.buckets.values())


def work(shard: int, sketches: Sketches) -> int:
    for number, line in enumerate(documents(shard)):
        sketches.add(line)
        if number % 2_000 == 1_999:
            sketches.settle()
    return SHARDS[shard]


def main() -> None:
    rank, world = join()
    queue = dist.PrefixStore("dedup", dist.distributed_c10d._get_default_store())
    sketches = Sketches()
    seen = 0
    while (shard := queue.add("next", 1) - 1) < len(SHARDS):
        say(f"takes shard {shard} of {len(SHARDS)} ({SHARDS[shard]} documents)")
        seen += work(shard, sketches)
    say(f"nothing left to take, {seen} documents done")
    totals = torch.tensor([seen, sketches.duplicates], dtype=torch.int64)
    dist.all_reduce(totals)
    if rank == 0:
        say(f"{totals[0]} documents, {totals[1]} near duplicates")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
