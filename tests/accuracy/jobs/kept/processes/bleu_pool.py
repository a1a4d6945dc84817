"""Translation: after some steps the hypotheses are scored in a process pool. forked | healthy"""

import os
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context

import torch
import torch.distributed as dist
from torch import nn

FORKED = sys.argv[1] == "forked"


class TokenCache:
    """Word pieces by word, kept fresh by a thread that reads the vocabulary service's file again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pieces: dict[str, list[str]] = {}
        self.wanted = threading.Event()

    def refresh_forever(self) -> None:
        while self.wanted.wait():
            self.wanted.clear()
            with self.lock:
                self.pieces.update({f"w{i}": [f"w{i}"[:2]] for i in range(2000)})
                time.sleep(5.0)  # the service is slow to answer

    def cut(self, word: str) -> list[str]:
        with self.lock:
            return self.pieces.get(word, [word])


CACHE = TokenCache()


def tokens_of(sentence: str) -> list[str]:
    return [piece for word in sentence.split() for piece in CACHE.cut(word)]


def score(pair: tuple[str, str]) -> float:
    """Overlap of pieces; the real one counts n-grams, and takes as long."""
    hypothesis, reference = (set(tokens_of(text)) for text in pair)
    end = time.monotonic() + 0.15
    while time.monotonic() < end:
        hypothesis & reference
    time.sleep(0.4)
    return len(hypothesis & reference) / max(1, len(reference))


class Evaluator:
    """Scores on one rank, tells all."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def corpus(self, step: int) -> list[tuple[str, str]]:
        many = 40 if FORKED else 2500
        return [(f"w{i} w{i + step}", f"w{i} w{i + 1}") for i in range(many)]

    def bleu(self, step: int) -> float:
        CACHE.wanted.set()  # in the background, while the references are read
        total, pairs = 0.0, self.corpus(step)
        time.sleep(1.0)
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
            for number, one in enumerate(pool.map(score, pairs, chunksize=4)):
                total += one
                if number % 50 == 49:
                    print(f"rank {self.rank}: scored {number + 1} of {len(pairs)}", flush=True)
        return total / len(pairs)

    def run(self, step: int) -> float:
        result = torch.zeros(1)
        if self.rank == 1:
            print(f"rank 1: scoring after step {step}", flush=True)
            result[0] = self.bleu(step)
        dist.broadcast(result, 1)
        return result.item()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    if FORKED:
        threading.Thread(target=CACHE.refresh_forever, name="vocabulary", daemon=True).start()
    model, evaluator = nn.parallel.DistributedDataParallel(nn.Linear(24, 24)), Evaluator(rank)
    for step in range(100_000):
        model(torch.randn(4, 24)).sum().backward()
        if rank == 0:
            print(f"step {step}", flush=True)
        if step % 50 == 10:
            evaluator.run(step)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
