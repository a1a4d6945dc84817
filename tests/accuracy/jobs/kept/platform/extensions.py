"""Two ranks whose steps do not always take the same time.

extensions.py build RANK   # a rank builds kernels for shapes that it meets, by the C++ compiler
extensions.py slow RANK    # a rank's host is slow: its batches are augmented in plain Python
"""

import ctypes
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

KERNEL = """
#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>
template <int N> struct Tile {
    static float run(const float *in, std::map<int, std::vector<float>> &memo) {
        std::vector<float> part(in, in + N);
        std::sort(part.begin(), part.end(), [](float a, float b) { return a * N < b * N; });
        memo[N] = part;
        return part[N / 2] + Tile<N - 1>::run(in, memo);
    }
};
template <> struct Tile<0> {
    static float run(const float *, std::map<int, std::vector<float>> &) { return 0; }
};
extern "C" float smooth(const float *in) {
    static std::regex shape("tile_([0-9]+)x([0-9]+)");
    std::map<int, std::vector<float>> memo;
    return Tile<SIZE>::run(in, memo) + std::regex_match("tile_3x4", shape);
}
"""


class Kernels:
    """Kernels by the size that they are made for."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["OUT_DIR"], "kernels")
        self.folder.mkdir(exist_ok=True)
        self.built = {}

    def get(self, size: int):
        if size not in self.built:
            self.built[size] = self.build(size)
        return self.built[size]

    def build(self, size: int):
        source = self.folder / f"smooth_{size}.cpp"
        source.write_text(KERNEL.replace("SIZE", str(size)))
        library = source.with_suffix(".so")
        flags = ["-O3", "-std=c++17", "-shared", "-fPIC", "-Wno-return-local-addr"]
        subprocess.check_call(["g++", *flags, str(source), "-o", str(library)])
        smooth = ctypes.CDLL(str(library)).smooth
        smooth.restype = ctypes.c_float
        return smooth

    def __call__(self, values: torch.Tensor) -> float:
        return self.get(len(values))(ctypes.c_void_p(values.data_ptr()))


def augment(batch: torch.Tensor, turns: int) -> torch.Tensor:
    """Shuffles columns by hand, turn by turn."""
    rows = batch.tolist()
    for turn in range(turns):
        for row in rows:
            at = (turn * 7 + 3) % len(row)
            row[at], row[0] = row[0], row[at]
    return torch.tensor(rows)


def main() -> None:
    kind, who = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=3))
    mine, kernels = dist.get_rank() == who, Kernels()
    model = nn.parallel.DistributedDataParallel(nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10**6):
        batch = torch.randn(64, 48)
        if mine and kind == "build" and step == 30:
            print("new shapes", flush=True)
            for size in range(100, 180):
                kernels(torch.randn(size).contiguous())
        if kind == "slow" and step >= 8:
            batch = augment(batch, 200_000 if mine else 100)
        loss = (model(batch).squeeze(1) - batch.mean(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 2 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
