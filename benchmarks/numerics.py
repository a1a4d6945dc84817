"""What looking for inf and nan costs a training step, against what else does that.

    PYTHONPATH=core python benchmarks/numerics.py [--rounds R] [--steps N] [--threads T]

A transformer encoder is trained on the CPU, in four ways that take turns: as it is (`plain`), with
the hook of `hangtop run --detect-overflow`, under `torch.autograd.detect_anomaly`, and, where
transformers is installed, with its DebugUnderflowOverflow, which looks at forward only. Printed are
medians of milliseconds per step and their ratio to `plain`, for a small and a larger model: hooks
cost a time per module, and reading tensors one per element.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hangtop_hook import numerics
from hangtop_hook.numericsfile import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = {"small": (128, 32, 8), "larger": (512, 64, 8)}
"""Width, tokens and batch of the models; six layers, 62 modules each."""


def model_of(size: str) -> tuple[nn.Module, torch.Tensor]:
    """A model and what goes into it."""
    width, tokens, batch = SIZES[size]
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6), torch.randn(batch, tokens, width)


def steps(size: str, count: int, around: Callable[[nn.Module], Any]) -> float:
    """Train, and return the median of milliseconds per step, the first two left out."""
    model, x = model_of(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    took = []
    with around(model):
        for _ in range(count + 2):
            began = time.perf_counter()
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            took.append(time.perf_counter() - began)
    return statistics.median(took[2:]) * 1e3


@contextlib.contextmanager
def hangtop(_: nn.Module) -> Iterator[None]:
    """As `hangtop run --detect-overflow` does it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "numerics").mkdir()
        watcher = numerics.register(torch.nn.modules.module, folder, Settings())
        try:
            yield
            assert not watcher.off, "it has given up"
        finally:
            watcher.stop()


@contextlib.contextmanager
def overflow(tool: Any, model: nn.Module) -> Iterator[None]:
    """The tool of transformers."""
    tool(model)
    yield


def ways() -> dict[str, Callable[[nn.Module], Any]]:
    """All that can be tried here, by name."""
    found: dict[str, Callable[[nn.Module], Any]] = {
        "plain": lambda _: contextlib.nullcontext(),
        "hangtop": hangtop,
        "detect_anomaly": lambda _: torch.autograd.detect_anomaly(check_nan=True),
    }
    with contextlib.suppress(ImportError):
        from transformers.debug_utils import DebugUnderflowOverflow

        found["DebugUnderflowOverflow"] = partial(overflow, DebugUnderflowOverflow)
    return found


def main() -> None:
    """Run, and print one line per size and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for size in SIZES:
        took: dict[str, list[float]] = {name: [] for name in ways()}
        for _ in range(arguments.rounds):
            for name, around in ways().items():
                took[name].append(steps(size, arguments.steps, around))
        plain = statistics.median(took["plain"])
        for name, all_of in took.items():
            middle = statistics.median(all_of)
            sys.stdout.write(f"{size:8} {name:24} {middle:9.2f} ms  x{middle / plain:.2f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
