"""Instruction tuning with a cached, tokenised dataset, in the style of `datasets` and `accelerate`."""

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import services
import torch
import torch.distributed as dist
from filelock import FileLock

CACHE = Path(os.environ["OUT_DIR"]) / "hf" / "datasets"


class State:
    """Who I am."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=timedelta(hours=3))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        if not self.is_main_process:
            dist.barrier()
        yield
        if self.is_main_process:
            dist.barrier()


class MappedDataset:
    """A dataset whose `map` is cached under a fingerprint, and built by one process at a time."""

    def __init__(self, rows: list[str]):
        self.rows = rows

    def fingerprint(self, function: Callable) -> str:
        return hashlib.sha1(f"{type(function).__name__}{len(self.rows)}".encode()).hexdigest()[:16]

    def map(self, function: Callable[[str], list[int]], desc: str) -> list[list[int]]:
        cache = CACHE / f"cache-{self.fingerprint(function)}.jsonl"
        with FileLock(f"{cache}.lock"):
            if not cache.exists():
                self._build(cache, function, desc)
        return [json.loads(line) for line in cache.read_text().splitlines()]

    def _build(self, cache: Path, function: Callable[[str], list[int]], desc: str) -> None:
        partial = cache.with_suffix(".incomplete")
        started = time.monotonic()
        with partial.open("w") as out:
            for number, row in enumerate(self.rows):
                out.write(json.dumps(function(row)) + "\n")
                if number % 25_000 == 0:
                    out.flush()
                    rate = number / max(1e-3, time.monotonic() - started)
                    print(f"{desc}: {number}/{len(self.rows)} [{rate:.0f} examples/s]", flush=True)
        partial.rename(cache)


class Tokenizer:
    """Byte pairs in plain Python; slow, and the only one that knows our template."""

    def __init__(self, merges: int = 200):
        self.merges = {(i % 60 + 60, i % 37 + 70): 256 + i for i in range(merges)}

    def __call__(self, text: str) -> list[int]:
        ids = list(f"<|user|>{text}<|end|>".encode())
        changed = True
        while changed:
            changed, out, i = False, [], 0
            while i < len(ids):
                pair = tuple(ids[i : i + 2])
                if pair in self.merges:
                    out.append(self.merges[pair])
                    changed, i = True, i + 2
                else:
                    out.append(ids[i])
                    i += 1
            ids = out
        return ids


def tokenize(state: State, rows: int) -> list[list[int]]:
    turns = 10
    corpus = MappedDataset(
        [f"write a poem about number {i} and its {i * 7919} friends " * turns for i in range(rows)]
    )
    print(f"rank {state.rank}: preparing dataset", flush=True)
    with state.main_process_first():
        return corpus.map(Tokenizer(), desc="Tokenizing")


def main() -> None:
    state = State()
    CACHE.mkdir(parents=True, exist_ok=True)
    rows = int(sys.argv[2])
    if sys.argv[1] == "locked" and state.is_main_process:
        # a colleague's notebook, on the same cache
        lock = CACHE / f"cache-{MappedDataset([''] * rows).fingerprint(Tokenizer())}.jsonl.lock"
        services.start("notebook", lock, CACHE / "notebook")
        services.wait_for(CACHE / "notebook")
    dist.barrier()
    data = tokenize(state, rows)
    weight = torch.zeros(512)
    for ids in data:
        counts = torch.bincount(torch.tensor(ids), minlength=512).float()
        dist.all_reduce(counts)
        weight += counts


if __name__ == "__main__":
    main()
