"""Pretraining whose document index is built by rank 0 on the first run: sqlite, then memory-mapped files.

The other ranks look every five seconds whether the index is ready, as Megatron's ranks do.
"""

import os
import random
import sqlite3
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from common import Learner, join, say

CACHE = Path(os.environ["OUT_DIR"]) / "index-cache"
ROWS = 700_000
SPLITS = [f"{corpus}-{part:02}" for corpus in ("web", "books", "code") for part in range(10)]


class DocumentTable:
    """Lengths and hashes of all documents, on disk."""

    def __init__(self, path: Path) -> None:
        self.base = sqlite3.connect(path)
        self.base.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-20000;"
        )

    def fill(self, seed: int) -> None:
        self.base.execute("DROP TABLE IF EXISTS document")
        self.base.execute(
            "CREATE TABLE document (id INTEGER PRIMARY KEY, key TEXT, tokens INTEGER)"
        )
        rng = random.Random(seed)
        rows = ((f"{rng.getrandbits(80):020x}", rng.randrange(16, 4096)) for _ in range(ROWS))
        self.base.executemany("INSERT INTO document (key, tokens) VALUES (?, ?)", rows)
        self.base.commit()

    def order(self) -> "sqlite3.Cursor":
        self.base.execute("CREATE INDEX by_key ON document (key)")
        return self.base.execute(
            "SELECT id, sum(tokens) OVER (ORDER BY substr(key, 7), key) FROM document ORDER BY key, tokens"
        )


def build(split: str, table: DocumentTable) -> None:
    table.fill(sum(map(ord, split)))
    index = np.memmap(CACHE / f"{split}.idx", dtype=np.int64, mode="w+", shape=(ROWS, 2))
    for row, pair in enumerate(table.order()):
        index[row] = pair
    index[:] = index[np.random.default_rng(1).permutation(ROWS)]
    index.flush()
    (CACHE / f"{split}.idx").rename(CACHE / "latest.idx")


def build_all() -> None:
    CACHE.mkdir(exist_ok=True)
    table = DocumentTable(CACHE / "documents.sqlite")
    say(f"no index in {CACHE}: building {len(SPLITS)} splits")
    for split in SPLITS:
        build(split, table)
        say(f"index of {split} built")
    (CACHE / "done").touch()


def wait_for_index() -> None:
    while not (CACHE / "done").exists():
        time.sleep(5)


def main() -> None:
    rank, _ = join()
    learner = Learner()
    learner.step()
    if rank == 0:
        build_all()
    else:
        wait_for_index()
    dist.barrier()
    index = np.memmap(CACHE / "latest.idx", dtype=np.int64, mode="r").reshape(-1, 2)
    for step in range(10_000):
        rows = torch.from_numpy(index[step * 16 : step * 16 + 16] % 97).float()
        loss = learner.step(rows.repeat(1, 32) / 97)
        say(f"step {step}: loss {loss:.4f}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
