"""A job whose package of plugins lies on a slow network file system: rank 1's node has a cold cache."""

import importlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

RANK = int(os.environ["RANK"])
PACKAGE = Path(os.environ["OUT_DIR"]) / f"site{RANK}" / "recipes"
COUNT = 900


def install(delay: float) -> None:
    """What the image has: many small modules, each of which takes its time to be read."""
    PACKAGE.mkdir(parents=True)
    (PACKAGE / "__init__.py").write_text("")
    for number in range(COUNT):
        (PACKAGE / f"recipe_{number:03d}.py").write_text(
            "import time\n"
            f"time.sleep({delay})\n"
            "class Recipe:\n"
            f"    name = 'recipe-{number}'\n"
            "    def apply(self, batch):\n"
            "        return batch\n"
            "TABLE = {n: n * n for n in range(20000)}\n"
        )
    sys.path.insert(0, str(PACKAGE.parent))


class Registry:
    """All recipes by name."""

    def __init__(self) -> None:
        self.recipes: dict[str, object] = {}

    def discover(self, package: str) -> None:
        for file in sorted(PACKAGE.glob("recipe_*.py")):
            module = importlib.import_module(f"{package}.{file.stem}")
            self.register(module.Recipe())

    def register(self, recipe) -> None:
        self.recipes[recipe.name] = recipe


def join() -> None:
    import torch.distributed as dist

    print(f"rank {RANK}: joining", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))


def train(registry: Registry) -> None:
    import torch
    import torch.distributed as dist

    recipe = next(iter(registry.recipes.values()))
    for step in range(100000):
        total = recipe.apply(torch.ones(8))
        dist.all_reduce(total)
        time.sleep(0.2)
        print(f"step {step}", flush=True)


def main() -> None:
    install(0.35 if RANK == 1 else 0.0)
    print(f"rank {RANK}: loading recipes", flush=True)
    registry = Registry()
    registry.discover("recipes")
    join()
    train(registry)


main()
