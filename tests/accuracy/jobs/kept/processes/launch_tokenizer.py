"""A launcher of our own (multiprocessing, one process per rank) around a native tokenizer."""

import ctypes
import multiprocessing as mp
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

WORLD = 4


class NativeTokenizer:
    """Binding of a C library: the vocabulary is copied into its arena."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.lib = ctypes.CDLL(None)
        self.lib.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.arena = ctypes.create_string_buffer(1 << 16)
        self.size = 0
        for word in vocabulary:
            self._append(word.encode())

    def _append(self, word: bytes) -> None:
        self.lib.memcpy(ctypes.addressof(self.arena) + self.size, word, len(word))
        self.size += len(word)

    def load_merges(self, address: int | None, size: int) -> None:
        """Copy the merges table that the cache mapped; the address is not checked."""
        self.lib.memcpy(self.arena, address, size)


class MergesCache:
    """Maps the merges of a vocabulary into memory; a truncated file gives a null mapping."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.table = ctypes.create_string_buffer(4096)

    def address(self) -> int | None:
        return None if self.rank == 1 else ctypes.addressof(self.table)


def build_tokenizer(rank: int) -> NativeTokenizer:
    tokenizer = NativeTokenizer({f"w{i}": i for i in range(1000)})
    print(f"[{rank}] loading merges", flush=True)
    time.sleep(1)
    tokenizer.load_merges(MergesCache(rank).address(), 4096)
    return tokenizer


def build_groups(rank: int) -> tuple:
    """Tensor-parallel pairs and data-parallel pairs."""
    wait = timedelta(minutes=30)
    tensor = [dist.new_group(r, timeout=wait, backend="gloo") for r in ([0, 1], [2, 3])]
    data = [dist.new_group(r, timeout=wait, backend="gloo") for r in ([0, 2], [1, 3])]
    everybody = dist.new_group(timeout=wait, backend="gloo")
    return tensor[rank // 2], data[rank % 2], everybody


def worker(rank: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = nn.Linear(32, 32)
    dist.barrier()
    build_tokenizer(rank)
    print(f"[{rank}] building groups", flush=True)
    _, data, _ = build_groups(rank)
    for step in range(10_000):
        model(torch.randn(4, 32)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=data)
        time.sleep(0.2)


def main() -> None:
    context = mp.get_context("spawn")
    os.environ["WORLD_SIZE"] = str(WORLD)
    workers = []
    for rank in range(WORLD):
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        workers.append(context.Process(target=worker, args=(rank,), name=f"rank{rank}"))
        workers[-1].start()
    for process in workers:  # the first first: what happens to the others is not noticed
        process.join()


if __name__ == "__main__":
    main()
