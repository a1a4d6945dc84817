"""Language model on text that a pool of processes tokenises, a chunk ahead of each round."""

import multiprocessing as mp
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

VOCAB = 512
DOCS_PER_ROUND = 24


def tokenize(doc):
    """One document to ids; runs in a process of the pool."""
    number, text = doc
    if number == 41_007:
        # a single line of 900 MB: the kernel ends the process for its memory
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return [hash(word) % VOCAB for word in text.split()]


class Corpus:
    """Documents of one rank, in rounds."""

    def __init__(self, rank):
        self.rank = rank

    def round(self, number):
        # numbers of documents: rank * 20,000 and up, a thousand for each round
        first = self.rank * 20_000 + number * 1000 - 6000 * (self.rank == 2)
        return [(first + i, f"the quick brown fox number {i} jumps") for i in range(DOCS_PER_ROUND)]


class TokenBatches:
    def __init__(self, corpus, pool, length=6):
        self.corpus, self.pool, self.length = corpus, pool, length

    def __iter__(self):
        number = 0
        while True:
            number += 1
            ids = self.pool.map(tokenize, self.corpus.round(number), chunksize=3)
            yield number, torch.tensor([row[: self.length] for row in ids])


class Bigram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, 16)
        self.head = torch.nn.Linear(16, VOCAB)

    def forward(self, ids):
        logits = self.head(self.embed(ids[:, :-1]))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def reduce_gradients(model):
    world = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def main():
    torch.set_num_threads(1)
    # before there are threads, which must not be forked
    pool = mp.get_context("fork").Pool(2)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = Bigram()
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    for number, ids in TokenBatches(Corpus(rank), pool):
        loss = model(ids)
        opt.zero_grad()
        loss.backward()
        reduce_gradients(model)
        opt.step()
        time.sleep(0.2)
        if rank == 0:
            print(f"step {number} ppl {loss.exp().item():.1f}", flush=True)
        if number == 500:
            break
    pool.close()
    pool.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
