"""Rank 0 builds fused operators in C++ with ninja before training; the others wait in a barrier.

As DeepSpeed's op builders do at first use: one extension after the other.
"""

import datetime
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

BUILDS = Path(os.environ["OUT_DIR"]) / "torch_extensions"

SOURCE = """
#include <torch/extension.h>
#include <ATen/ATen.h>
#include <map>
#include <string>
#include <vector>

torch::Tensor NAME_forward(torch::Tensor input, double factor) {
  auto out = input.clone();
  out.mul_(factor).add_(BIAS);
  return out.tanh();
}

std::map<std::string, std::vector<torch::Tensor>> NAME_state(torch::Tensor input) {
  std::map<std::string, std::vector<torch::Tensor>> state;
  for (int part = 0; part < 4; ++part) state["NAME"].push_back(input.chunk(4)[part]);
  return state;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &NAME_forward, "forward");
  m.def("state", &NAME_state, "state");
}
"""


class OpBuilder:
    """Builds one operator when it is first asked for."""

    def __init__(self, name: str, bias: float) -> None:
        self.name, self.bias = name, bias

    def sources(self) -> list[str]:
        """Written to the build folder; as text they would be built anew each time."""
        folder = BUILDS / self.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.cpp"
        if not path.exists():
            path.write_text(SOURCE.replace("NAME", self.name).replace("BIAS", str(self.bias)))
        return [str(path)]

    def load(self):
        """The module; it is built if need be."""
        return cpp_extension.load(
            name=self.name,
            sources=self.sources(),
            extra_cflags=["-O3"],
            build_directory=str(BUILDS / self.name),
            verbose=False,
        )


OPERATORS = [
    OpBuilder(name, place / 10)
    for place, name in enumerate(
        ("fused_adam", "fused_lamb", "cpu_adagrad", "layer_norm", "softmax_dropout", "quantizer")
        + ("rotary", "moe_gate", "swiglu", "async_io", "transformer_inference", "ragged_ops")
    )
]


def load_operators(rank: int) -> dict[str, object]:
    """The first rank builds, the others load what is there then."""
    if rank == 0:
        print("building operators", flush=True)
        modules = {one.name: one.load() for one in OPERATORS}
        dist.barrier()
    else:
        dist.barrier()
        modules = {one.name: one.load() for one in OPERATORS}
    return modules


def main() -> None:
    """Build, train."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=60))
    rank = dist.get_rank()
    weight = torch.ones(32)
    dist.broadcast(weight, src=0)
    modules = load_operators(rank)
    for step in range(1000):
        weight = modules["rotary"].forward(weight, 0.5)
        dist.all_reduce(weight)
        if rank == 0 and step % 100 == 0:
            print(f"step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
