"""Rank 1 has something of its own to do before the barrier, piece by piece. pieces.py MODE"""

import datetime
import os
import queue
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
OUT = Path(os.environ["OUT_DIR"])
MODE = sys.argv[1]


class Mirror:
    """Copies a file in small pieces, as the other side wants it."""

    def __init__(self, target):
        self.target = target

    def run(self):
        with self.target.open("wb", buffering=0) as out:
            left = 400
            while left:
                out.write(os.urandom(4096))
                time.sleep(1.5)
                left -= 1


class Feeder(threading.Thread):
    def __init__(self, box):
        super().__init__(name="feeder", daemon=True)
        self.box = box

    def run(self):
        for number in range(5):
            self.box.put(number)
        self.box.put({}["labels"])


def special():
    if MODE == "mirror":
        worker = threading.Thread(target=Mirror(OUT / "copy").run)
        worker.start()
        worker.join()
    elif MODE == "feeder":
        box = queue.Queue()
        Feeder(box).start()
        while True:
            box.get()
    elif MODE == "captions":
        for name in [f"clip-{i}" for i in range(200)]:
            time.sleep(2.5)
            print(f"captioned {name}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    for step in range(8):
        x = torch.ones(4)
        dist.all_reduce(x)
        time.sleep(0.2)
        if RANK == 0:
            print(f"step {step}", flush=True)
    if RANK == 1:
        special()
    dist.barrier()


if __name__ == "__main__":
    main()
