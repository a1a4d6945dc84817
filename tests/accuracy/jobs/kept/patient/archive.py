"""After an epoch rank 0 packs the predictions of all ranks with tar and gzip and sorts their scores with
sort(1), in child processes; the others wait until that is published.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import torch.distributed as dist
from common import Learner, join, say

OUT = Path(os.environ["OUT_DIR"]) / "predictions"


class Exporter:
    """Packs a folder by the programs that everybody has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archive = folder.parent / "predictions.tar.gz"

    def pack(self) -> int:
        with self.archive.open("wb") as target:
            tar = subprocess.Popen(
                ["tar", "-C", str(self.folder), "-cf", "-", "."], stdout=subprocess.PIPE
            )
            gzip = subprocess.Popen(["gzip", "-9"], stdin=tar.stdout, stdout=target)
            tar.stdout.close()
            if gzip.wait() or tar.wait():
                raise RuntimeError("packing failed")
        return self.archive.stat().st_size

    def rank_scores(self) -> None:
        """One text file with all scores, best first."""
        text, ordered = self.folder.parent / "scores.txt", self.folder.parent / "scores.sorted"
        with text.open("w") as file:
            for path in sorted(self.folder.glob("*.npy")):
                np.savetxt(file, np.load(path)[:400_000].astype(np.uint16), fmt="%d")
        command = [
            "sort",
            "-n",
            "-r",
            "-S",
            "4M",
            "-T",
            str(text.parent),
            "-o",
            str(ordered),
            str(text),
        ]
        subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C"})


def predict(learner: Learner, rank: int, epoch: int) -> None:
    rng = np.random.default_rng([rank, epoch])
    np.save(OUT / f"rank{rank}.npy", rng.integers(0, 3, 30_000_000, dtype=np.uint8))


def main() -> None:
    rank, _ = join()
    OUT.mkdir(exist_ok=True)
    learner = Learner()
    exporter = Exporter(OUT)
    for epoch in range(50):
        for _ in range(20):
            loss = learner.step()
        say(f"epoch {epoch}: loss {loss:.4f}")
        predict(learner, rank, epoch)
        dist.barrier()
        if rank == 0:
            began = time.monotonic()
            say("packing predictions")
            size = exporter.pack()
            exporter.rank_scores()
            say(f"published {size >> 20} MiB after {time.monotonic() - began:.0f} s")
        dist.barrier()
    if rank == 0:
        shutil.rmtree(OUT)


if __name__ == "__main__":
    main()
