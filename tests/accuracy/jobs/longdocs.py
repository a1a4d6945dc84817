"""Summaries: the documents are shared out by number, not by length, and one rank has the long ones.

Started by mp.spawn; every rank scores the sentences of its documents before it learns from them.
"""

import math
import os
import sys
import time
from collections import Counter

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

WORDS = [f"w{k}" for k in range(500)]


def document(number, length):
    """Sentences of words, made from a number."""
    state, sentences = number * 2654435761 % 2**32, []
    for _ in range(length):
        words = []
        for _ in range(12):
            state = (1103515245 * state + 12345) % 2**31
            words.append(WORDS[state % 500])
        sentences.append(words)
    return sentences


def similarity(one, other, frequency):
    shared = set(one) & set(other)
    return sum(1 / (1 + math.log(frequency[word])) for word in shared)


def centrality(sentences):
    """LexRank, near enough: how much each sentence has in common with all others."""
    frequency = Counter(word for sentence in sentences for word in sentence)
    return [
        sum(similarity(one, other, frequency) for other in sentences if other is not one)
        for one in sentences
    ]


def rank_sentences(scores, keep):
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return sorted(order[:keep])


def vectors(sentences):
    rows = torch.zeros(len(sentences), 500)
    for row, words in zip(rows, sentences, strict=True):
        for word in words:
            row[int(word[1:])] += 1
    return rows


def work(rank, world):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(500, 1))
    optimizer = torch.optim.Adam(model.parameters())
    length = 20
    for step in range(10**9):
        if rank == 2 and step >= 7:
            length = 10_000  # a book: most of a minute on a fast processor
        began = time.perf_counter()
        sentences = document(step, length)
        scores = centrality(sentences)
        chosen = rank_sentences(scores, 5)
        labels = torch.zeros(len(sentences), 1)
        labels[chosen] = 1
        loss = torch.nn.functional.mse_loss(model(vectors(sentences)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            took = time.perf_counter() - began
            print(f"step {step} took {took:.1f} s, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    mp.spawn(work, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
