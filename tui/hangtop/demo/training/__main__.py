"""Starts one rank of the training program, or with `--spawn` all of them."""

from __future__ import annotations

import argparse

import torch.multiprocessing as mp

from .ranks import SCENARIOS, run, run_spawned


def main() -> None:
    """Parse the arguments and start the ranks."""
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
