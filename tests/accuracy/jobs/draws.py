"""A sampler that draws until something is accepted; one rank has bounds that nothing fits in.

python draws.py
"""

import threading
import time

import torch
import torch.distributed as dist

LONG_S = 130.0


def draw(scale):
    return torch.randn(16, 16).mul(scale).abs().max()


def accepted(value, bound):
    return bool(value < bound)


def sample(scale, bound):
    while True:
        value = draw(scale)
        if accepted(value, bound):
            return value


def tell_later():
    time.sleep(LONG_S)
    print("it has waited long", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(100_000):
        bound = 0.0 if rank == 1 and step == 8 else 1e9
        value = sample(1.0, bound)
        if rank == 0 and step == 8:
            threading.Thread(target=tell_later, daemon=True).start()
        dist.all_reduce(value)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
