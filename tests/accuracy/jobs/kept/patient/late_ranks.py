"""Start-up in a big job: every rank first stages the weights from the shared file system to its node's disk,
checks them, and joins then. Nodes differ in how fast that goes; the first ones wait for the last.
"""

import hashlib
import os
import time
from pathlib import Path

import torch
from common import Learner, join, say

RANK = int(os.environ["RANK"])
SHARED = Path(os.environ["OUT_DIR"])
PIECE = 256 << 10
PIECES = {0: 20, 1: 100, 2: 220, 3: 400}
"""How many of its half seconds a rank's node needs for the same weights: its network is shared."""


class SharedFileSystem:
    """The weights where the cluster keeps them, behind a link others use, too."""

    def __init__(self, size: int, reads: int) -> None:
        self.size, self.block = size, size // reads + 1

    def blocks(self):
        left = self.size
        with open("/dev/urandom", "rb", buffering=0) as source:
            while left > 0:
                time.sleep(0.5)
                block = source.read(min(self.block, left))
                left -= len(block)
                yield block


class Staging:
    """Copies the weights to the local disk, with a checksum."""

    def __init__(self, rank: int) -> None:
        self.target = SHARED / f"node{rank}" / "weights.safetensors"
        self.source = SharedFileSystem(400 * PIECE, PIECES[rank])
        self.total = hashlib.sha256()

    def run(self) -> str:
        self.target.parent.mkdir(exist_ok=True)
        done, told = 0, 0
        with self.target.open("wb") as target:
            for block in self.source.blocks():
                target.write(block)
                self.total.update(block)
                done += len(block)
                if done * 5 // self.source.size > told:
                    told = done * 5 // self.source.size
                    say(f"staged {20 * told} % of the weights")
            os.fsync(target.fileno())
        return self.total.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    digest = Staging(RANK).run()
    say(f"weights are here ({digest[:8]}), joining")
    join()
    learner = Learner()
    for step in range(10_000):
        loss = learner.step()
        if step % 10 == 0:
            say(f"step {step}: loss {loss:.4f}")
        time.sleep(0.3)


if __name__ == "__main__":
    main()
