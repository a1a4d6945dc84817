"""Local rank 0 of the node fetches the dataset from a mirror that is throttled and cuts connections;
each try goes on where the last one stopped. The others wait for it before they open the data.
"""

import hashlib
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import remote_services
import torch
import torch.distributed as dist
from common import Learner, join, say

PORT = 29210
DATA = Path(os.environ["OUT_DIR"]) / "dataset"


class Download:
    """One file, resumed until it is complete."""

    def __init__(self, url: str, target: Path, tries: int = 200) -> None:
        self.url, self.target, self.tries = url, target, tries
        self.part = target.with_suffix(".incomplete")
        self.size = 0

    def run(self) -> Path:
        refused = 0
        for number in range(self.tries):
            have = self.part.stat().st_size if self.part.exists() else 0
            if self.size and have >= self.size:
                return self.part.rename(self.target)
            try:
                self._resume(have)
                refused = 0
            except (urllib.error.HTTPError, urllib.error.URLError, ConnectionError) as error:
                refused += 1
                pause = min(6 * refused, 60)
                say(f"try {number + 1} of {self.target.name}: {error}; again in {pause} s")
                time.sleep(pause)
        raise RuntimeError(f"{self.url}: gave up after {self.tries} tries")

    def _resume(self, have: int) -> None:
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={have}-"})
        with urllib.request.urlopen(request, timeout=60) as answer, self.part.open("ab") as file:
            self.size = have + int(answer.headers["Content-Length"])
            while block := answer.read1(1 << 16):
                file.write(block)
        done = self.part.stat().st_size
        if done < self.size:
            say(f"connection closed early at {done >> 20} of {self.size >> 20} MiB, resuming")


def prepare() -> None:
    DATA.mkdir(exist_ok=True)
    for number in range(3):
        path = Download(
            f"http://127.0.0.1:{PORT}/shards/{number:05}.bin", DATA / f"{number:05}.bin"
        ).run()
        say(f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}")


def main() -> None:
    if os.environ["LOCAL_RANK"] == "0":
        remote_services.start("mirror", PORT)
    rank, _ = join()
    learner = Learner()
    for step in range(4):
        learner.step()
    if os.environ["LOCAL_RANK"] == "0":
        say("dataset not in the cache, downloading")
        prepare()
    dist.barrier()
    data = np.concatenate([np.memmap(path, dtype=np.uint8) for path in sorted(DATA.glob("*.bin"))])
    for step in range(10_000):
        batch = torch.from_numpy(data[step * 1024 : (step + 1) * 1024].copy()).float().view(16, 64)
        say(f"step {step}: loss {learner.step(batch):.4f}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
