"""Trains on rows that come from somewhere: a service, a database.

python feed.py MODE [--workers N] [--culprit R]
"""

import argparse
import http.server
import multiprocessing as mp
import os
import sqlite3
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

HERE = Path(os.environ.get("OUT_DIR", "/tmp"))
BAD = 40


class Rows(http.server.BaseHTTPRequestHandler):
    """A row server; it answers slowly once it is asked for the row BAD."""

    mode = ""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4000000" if "blob" in self.path else "8")
        self.end_headers()
        index = int(self.path.rpartition("/")[2])
        if self.mode == "stream" and index >= BAD:
            time.sleep(9)
        if "blob" in self.path:
            for _ in range(4000000 // 2000):
                self.wfile.write(b"x" * 2000)
                time.sleep(0.2)
            return
        self.wfile.write(b"abcdefgh")

    def log_message(self, *_):
        pass


def serve(mode, port_file):
    Rows.mode = mode
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rows)
    server.daemon_threads = True
    port_file.write_text(str(server.server_port))
    server.serve_forever()


def fetch(index, kind="row"):
    port = int((HERE / "port").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{kind}/{index}") as answer:
        return answer.read()


class Corpus(Dataset):
    """Rows by number."""

    def __init__(self, options, rank):
        self.mode, self.rank, self.culprit = options.mode, rank, options.culprit

    def __len__(self):
        return 1000000

    def __getitem__(self, index):
        mine = self.rank == self.culprit
        if self.mode == "sqlite" and mine and index >= BAD:
            self.count_in_database(index)
        return torch.randn(16), torch.tensor(index % 4)

    def count_in_database(self, index):
        with sqlite3.connect(HERE / "seen.db", timeout=3600) as database:
            database.execute("INSERT INTO seen VALUES (?)", (index,))


class Stream(IterableDataset):
    """Documents of a shard, one after the other."""

    def __iter__(self):
        for index in range(100000):
            if index < 200:
                time.sleep(0.02)
            else:
                fetch(BAD)
            yield torch.randn(16), torch.tensor(index % 4)


def seed_database():
    database = sqlite3.connect(HERE / "seen.db", isolation_level=None)
    database.execute("CREATE TABLE seen (row INTEGER)")
    return database


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--culprit", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0 and options.mode in ("trickle", "stream"):
        mp.get_context("fork").Process(
            target=serve, args=(options.mode, HERE / "port"), daemon=True
        ).start()
    if rank == 0 and options.mode == "sqlite":
        database = seed_database()
    dist.barrier()
    time.sleep(1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    corpus = Stream() if options.mode == "stream" else Corpus(options, rank)
    loader = DataLoader(corpus, batch_size=4, num_workers=options.workers)
    step = 0
    for epoch in range(1000):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.1)
            if rank == 0:
                print(f"step {step}", flush=True)
            step += 1
            if options.mode == "sqlite" and step == 7 and rank == 0:
                database.execute("BEGIN EXCLUSIVE")
                database.execute("INSERT INTO seen VALUES (-1)")
            if options.mode == "trickle" and step == 8:
                if rank == 0:
                    (HERE / "weights").write_bytes(fetch(0, "blob"))
                dist.barrier()


if __name__ == "__main__":
    main()
