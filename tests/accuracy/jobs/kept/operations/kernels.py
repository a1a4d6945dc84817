"""Builds its kernels with the C compiler on rank 0 while the others wait, as a first start does."""

import os
import subprocess
import time
from ctypes import CDLL
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

BUILD = Path(os.environ["OUT_DIR"]) / "build"
SOURCE = """
#include <math.h>
%s
double kernel_%d(double x) { return sin(x) * %d; }
"""


class Toolchain:
    def __init__(self, compiler: str = "cc"):
        self.compiler = compiler
        self.flags = ["-O2", "-fPIC"]

    def run(self, *arguments: str) -> None:
        done = subprocess.run([*arguments], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)

    def compile(self, source: Path) -> Path:
        target = source.with_suffix(".o")
        # as cc1plus on template code: some seconds a file (niced, others use this machine)
        self.run(
            "sh",
            "-c",
            f"{self.compiler} {' '.join(self.flags)} -c {source} -o {target} && sleep 2.5",
        )
        return target

    def link(self, objects: list[Path], target: Path) -> None:
        self.run(self.compiler, "-shared", *map(str, objects), "-o", str(target), "-lm")


class Kernels:
    """A shared library of many kernels, built once."""

    def __init__(self, toolchain: Toolchain, count: int):
        self.toolchain, self.count = toolchain, count
        self.library = BUILD / "libkernels.so"

    def sources(self) -> list[Path]:
        BUILD.mkdir(exist_ok=True)
        made = []
        for number in range(self.count):
            body = "\n".join(
                f"static double f{n}(double x) {{ return x * {n} + cos(x); }}" for n in range(150)
            )
            path = BUILD / f"kernel_{number:03d}.c"
            path.write_text(SOURCE % (body, number, number))
            made.append(path)
        return made

    def build(self) -> None:
        objects = []
        sources = self.sources()
        for number, source in enumerate(sources, 1):
            objects.append(self.toolchain.compile(source))
            if number in (1, 2):
                print(f"[{number}/{len(sources)}] cc -c {source.name}", flush=True)
        self.toolchain.link(objects, self.library)

    def load(self) -> CDLL:
        return CDLL(str(self.library))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    kernels = Kernels(Toolchain(), 120)
    if dist.get_rank() == 0:
        kernels.build()
    dist.barrier()
    kernels.load()
    for step in range(100000):
        dist.all_reduce(torch.ones(4))
        time.sleep(0.3)
        print(f"step {step}", flush=True)


main()
