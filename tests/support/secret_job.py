"""A job of gloo ranks that leaves secrets wherever jobs do, and hangs: rank 1 sleeps.

secret_job.py PLANTS ...   PLANTS: JSON with what is printed; its other arguments are not read
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist


def stuck(plants: dict[str, str]) -> None:
    """Hang, with everything in variables."""
    for index, (kind, text) in enumerate(plants.items()):
        sys.stdout.write(f"plant-{index} {kind}: {text}\n")
    sys.stdout.flush()
    config = {**json.loads(plants["JSON"]), "lr": "3e-4"}
    hold(config, plants["--password x"].split()[2], plants["database URL"], list(plants.values()))


def hold(config: dict[str, str], api_key: str, connection: str, lines: list[str]) -> None:
    first, second, third = lines[0], lines[8], lines[11]
    if dist.get_rank() == 1:
        time.sleep(100_000)
    dist.all_reduce(torch.ones(4))
    del first, second, third


def main() -> None:
    torch.set_num_threads(1)
    with open(sys.argv[1]) as file:
        plants = json.load(file)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    stuck(plants)


if __name__ == "__main__":
    main()
