"""Start one rank of the training program, or with `--spawn` all of them."""

from __future__ import annotations

import argparse
import os

import torch.distributed as dist
import torch.multiprocessing as mp

from . import blocked, collectives, data, lifecycle
from .trainer import Trainer, announce

SCENARIOS: dict[str, type[Trainer]] = {
    **collectives.SCENARIOS,
    **data.SCENARIOS,
    **blocked.SCENARIOS,
    **lifecycle.SCENARIOS,
}


def run(scenario: str) -> None:
    """Join the group of all ranks and train."""
    if scenario == "never-joined":
        announce()
    dist.init_process_group("gloo")
    SCENARIOS[scenario]().train()


def run_spawned(local_rank: int, world_size: int, scenario: str) -> None:
    """One rank of `--spawn`: its numbers come as arguments, not in its first environment."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(local_rank)
    os.environ["WORLD_SIZE"] = str(world_size)
    run(scenario)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="training")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--spawn", type=int, metavar="RANKS")
    arguments = parser.parse_args()
    if arguments.spawn:
        mp.spawn(run_spawned, args=(arguments.spawn, arguments.scenario), nprocs=arguments.spawn)
    else:
        run(arguments.scenario)


if __name__ == "__main__":
    main()
