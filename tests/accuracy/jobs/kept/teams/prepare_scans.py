"""Medical segmentation: one rank of the node converts the scans by a tool before the epoch, the rest wait."""

import hashlib
import os
import shlex
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path


class Converter:
    """Runs the conversion tool over a cohort, by the site's wrapper script."""

    def __init__(self, cache: Path):
        self.cache = cache

    def command(self, cohort: int, scans: int) -> list[str]:
        tool = shlex.join(
            [sys.executable, "-S", __file__, "convert", str(self.cache / str(cohort)), str(scans)]
        )
        return ["sh", "-c", f"umask 027; {tool} && touch {self.cache}/{cohort}.done"]

    def run(self, cohort: int, scans: int):
        if not (self.cache / f"{cohort}.done").exists():
            subprocess.run(self.command(cohort, scans), check=True, capture_output=True)


def convert(target: str, scans: int):
    """The tool: reads slices, resamples them, writes a volume for each scan."""
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    for scan in range(scans):
        digest = b"%d" % scan
        with (folder / f"{scan:05}.vol").open("wb") as file:
            for _ in range(24):
                for _ in range(30_000):
                    digest = hashlib.sha256(digest).digest()
                file.write(digest * 64)
                time.sleep(0.03)


def main():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(hours=3))
    rank = int(os.environ["RANK"])
    converter = Converter(Path(os.environ.get("OUT_DIR", "/tmp")) / "cache")
    if rank == 0:
        converter.cache.mkdir(exist_ok=True)
    net = torch.nn.Conv2d(1, 2, 3)
    for cohort in range(3):
        if rank == 0:
            scans = 2 if cohort == 0 else 2000
            print(f"preparing cohort {cohort}: {scans} scans", flush=True)
            converter.run(cohort, scans)
        dist.barrier()
        for step in range(10):
            net(torch.randn(2, 1, 16, 16)).square().mean().backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
            if rank == 0:
                print(f"cohort {cohort} step {step}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["convert"]:
        convert(sys.argv[2], int(sys.argv[3]))
    else:
        main()
