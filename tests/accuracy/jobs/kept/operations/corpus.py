"""Tokenises a corpus on rank 0 with a process pool, then trains on it."""

import multiprocessing as mp
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

CACHE = Path(os.environ["OUT_DIR"]) / "tokens.pt"


class Tokenizer:
    """Bytes to numbers, slowly."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        time.sleep(0.05)
        self.check_memory(text)
        return [ord(c) % self.vocabulary for c in text]

    def check_memory(self, text: str) -> None:
        # a document without a newline blows this process up: the node's OOM daemon takes it
        if len(text) > 5000:
            os.kill(os.getpid(), signal.SIGKILL)


TOKENIZER = Tokenizer(256)


def encode_document(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def documents() -> list[str]:
    texts = ["the quick brown fox jumps over the lazy dog " * 4] * 120
    texts[60] = "x" * 9000
    return texts


class Corpus:
    def __init__(self, cache: Path, workers: int):
        self.cache, self.workers = cache, workers

    def prepare(self) -> None:
        if self.cache.exists():
            return
        texts = documents()
        print(f"Map (num_proc={self.workers}): {len(texts)} documents", flush=True)
        with mp.get_context("fork").Pool(self.workers) as pool:
            encoded = pool.map(encode_document, texts, chunksize=8)
        torch.save([torch.tensor(one) for one in encoded], self.cache)

    def load(self) -> list[torch.Tensor]:
        return torch.load(self.cache)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    corpus = Corpus(CACHE, workers=3)
    if dist.get_rank() == 0:
        corpus.prepare()
    dist.barrier()
    tokens = corpus.load()
    model = nn.Embedding(256, 8)
    for step in range(10000):
        model(tokens[step % len(tokens)][:32]).mean().backward()
        dist.all_reduce(model.weight.grad)
        print(f"step {step}", flush=True)


main()
