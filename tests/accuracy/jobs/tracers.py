"""Tracers in a basin that is cut in four: edges are exchanged along columns and along diagonals.

Which comes first depends on the torch that is installed: newer ones "prefer" diagonals.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

NEWER = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
PAIRS = {"columns": ((0, 2), (1, 3)), "diagonals": ((0, 3), (1, 2))}


def neighbours() -> dict[str, dist.ProcessGroup]:
    mine = {}
    for way, pairs in PAIRS.items():
        for pair in pairs:
            group = dist.new_group(list(pair))
            if dist.get_rank() in pair:
                mine[way] = group
    return mine


def order(day: int) -> list[str]:
    ways = sorted(PAIRS)
    return ways[::-1] if NEWER and day >= 8 else ways


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    torch.set_num_threads(1)
    groups = neighbours()
    salt = torch.rand(64, 64)
    for day in range(10**6):
        salt = (salt + salt.roll(1, 0) + salt.roll(1, 1)) / 3
        for way in order(day):
            edge = salt[0].clone()
            dist.all_reduce(edge, group=groups[way])
            salt[0] = edge / 2
        if day < 12:
            print(f"day {day}: {salt.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
