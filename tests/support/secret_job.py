"""A job of gloo ranks that leaves secrets wherever jobs do, and hangs: rank 1 sleeps.

secret_job.py PLANTS ...   PLANTS: JSON with what is printed; its other arguments are not read
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist


def stuck(plants: list[list[str]], config: dict[str, str], password: str) -> None:
    """Hang, with everything in variables."""
    for index, (kind, _, text) in enumerate(plants):
        sys.stdout.write(f"plant-{index} {kind}: {text}\n")
    sys.stdout.flush()
    hold(config, password, [one[2] for one in plants])


def hold(config: dict[str, str], api_key: str, lines: list[str]) -> None:
    first, second, third = lines[0], lines[8], lines[11]
    connection = lines[34]
    if dist.get_rank() == 1:
        time.sleep(100_000)
    dist.all_reduce(torch.ones(4))
    del first, second, third, connection


def main() -> None:
    torch.set_num_threads(1)
    with open(sys.argv[1]) as file:
        plants = json.load(file)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    stuck(plants, {"client_secret": plants[20][1], "lr": "3e-4"}, plants[24][1])


if __name__ == "__main__":
    main()
