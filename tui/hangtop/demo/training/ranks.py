"""The entry points of one rank, by the name of its scenario.

Separate from `__main__`, because spawned processes import the functions they run by module name.
"""

from __future__ import annotations

import os

import torch.distributed as dist

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
    if scenario in ("never-joined", "misconfigured"):
        announce()
    dist.init_process_group("gloo")
    SCENARIOS[scenario]().train()


def run_spawned(local_rank: int, world_size: int, scenario: str) -> None:
    """Run one rank of `--spawn`: its numbers come as arguments, not in its initial environment."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(local_rank)
    os.environ["WORLD_SIZE"] = str(world_size)
    run(scenario)
