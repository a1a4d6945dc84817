"""Before anything is trained every rank makes a tokenizer for its own language, by counting pairs.

That takes an hour with real corpora; it says so now and then, and nobody is stuck.
"""

import json
import logging
import os
import random
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist

LOG = logging.getLogger(__name__)
MERGES = 20_000


class Corpus:
    """Words with how often they are there."""

    def __init__(self, language, size):
        chance = random.Random(language)
        syllables = ["".join(chance.choices("aeiousktrlmnpd", k=3)) for _ in range(300)]
        self.words = {}
        for _ in range(size):
            word = "".join(chance.choices(syllables, k=chance.randint(2, 6)))
            self.words[tuple(word)] = chance.randint(1, 100)


class PairEncoding:
    """Byte-pair encoding, learned the plain way."""

    def __init__(self, corpus, save_to):
        self.words, self.merges, self.save_to = dict(corpus.words), [], save_to

    def count(self):
        pairs = defaultdict(int)
        for word, often in self.words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += often
        return pairs

    def merge(self, word, pair):
        out, place = [], 0
        while place < len(word):
            if word[place : place + 2] == pair:
                out.append(pair[0] + pair[1])
                place += 2
            else:
                out.append(word[place])
                place += 1
        return tuple(out)

    def train(self, merges):
        began = told = time.monotonic()
        while len(self.merges) < merges:
            pairs = self.count()
            best = max(pairs, key=pairs.__getitem__)
            self.words = {self.merge(word, best): n for word, n in self.words.items()}
            self.merges.append(best)
            if time.monotonic() - told > 20:
                told = time.monotonic()
                rate = len(self.merges) / (told - began)
                LOG.info("%d of %d merges, %.1f a second", len(self.merges), merges, rate)
        self.save_to.write_text(json.dumps(self.merges))


def train_model(size):
    """What all that is for."""
    table = torch.nn.Embedding(size, 8)
    optimizer = torch.optim.Adagrad(table.parameters())
    while True:
        table(torch.randint(0, size, (64,))).norm().backward()
        dist.all_reduce(table.weight.grad)
        optimizer.step()
        optimizer.zero_grad()


def main():
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank}: %(message)s")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    dist.barrier()
    LOG.info("learning the merges of language %d", rank)
    corpus = Corpus(f"language {rank}", 15_000)
    PairEncoding(corpus, Path(os.environ["OUT_DIR"], f"merges-{rank}.json")).train(MERGES)
    dist.barrier()
    train_model(MERGES + 256)


if __name__ == "__main__":
    main()
