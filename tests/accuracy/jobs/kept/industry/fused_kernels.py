"""Fine-tuning with kernels of our own, which the first rank builds with make before the others load them."""

import ctypes
import datetime
import itertools
import os
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

SOURCE = """\
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
// Fused softmax, head dimension %(dim)d, %(type)s, %(mask)s mask.
template <int Dim, int Row> struct Softmax {
  static void run(%(type)s *x, int n) {
    %(type)s top = x[0];
    for (int i = 1; i < Dim; i++) top = std::max(top, x[i]);
    std::vector<%(type)s> e(Dim);
    for (int i = 0; i < Dim; i++) e[i] = x[i] - top * Row;
    std::sort(e.begin(), e.end(), [](auto a, auto b) { return a * Row < b * Dim; });
    for (int i = 0; i < Dim; i++) x[i] = e[i] / (n + 1);
    Softmax<Dim, Row - 1>::run(x + Dim, n);
  }
};
template <int Dim> struct Softmax<Dim, 0> { static void run(%(type)s *, int) {} };
static std::map<std::string, std::function<void(%(type)s *, int)>> table = {
    {"small", Softmax<%(dim)d, %(rows)d>::run}, {"large", Softmax<%(dim)d * 2, %(rows)d>::run}};
extern "C" void %(name)s(%(type)s *x, int n, const char *which) {
  if (std::regex_match(which, std::regex("[a-z]+"))) table[which](x, n);
}
"""
MAKEFILE = """\
CXXFLAGS += -O3 -fPIC -std=c++17
OBJECTS := $(patsubst %.cpp,%.o,$(wildcard *.cpp))
fused.so: $(OBJECTS)
\t$(CXX) -shared -o $@ $^
%.o: %.cpp
\t$(CXX) $(CXXFLAGS) -c $< -o $@
"""


class KernelLibrary:
    """Sources for all variants, their build, and the loaded library."""

    variants = list(
        itertools.product(
            (32, 64, 80, 96, 128, 160, 192, 256),
            ("float", "double"),
            ("causal", "padding", "local"),
        )
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_sources(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "Makefile").write_text(MAKEFILE)
        for dim, kind, mask in self.variants:
            name = f"softmax_{mask}_{kind}_{dim}"
            text = SOURCE % {"dim": dim, "type": kind, "mask": mask, "name": name, "rows": 48}
            (self.folder / f"{name}.cpp").write_text(text)

    def compile_helper(self) -> None:
        """Build what is not there yet."""
        done = subprocess.run(["make", "-s", "-C", str(self.folder)])
        if done.returncode != 0:
            raise SystemExit("Making the fused kernels failed")

    def load(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.folder / "fused.so"))


def setup_kernels(rank: int, folder: Path) -> ctypes.CDLL:
    library = KernelLibrary(folder)
    if rank == 0:
        start = time.time()
        print("> compiling and loading fused kernels ...", flush=True)
        library.write_sources()
        library.compile_helper()
        print(f">>> done with compiling fused kernels: {time.time() - start:.0f} s", flush=True)
    dist.barrier()
    return library.load()


def train(rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 100_000):
        loss = model(torch.randn(16, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    rank = dist.get_rank()
    setup_kernels(rank, Path(os.environ["OUT_DIR"]) / "fused_kernels" / "build")
    train(rank)


if __name__ == "__main__":
    main()
