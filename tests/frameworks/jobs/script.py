"""A script under torchrun or one of its kin: rank 1 sleeps in a function of its own."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    if "--title" in sys.argv:
        import setproctitle

        setproctitle.setproctitle("pretrain llama-8b run 2026-11-28_lr3e-4_bs512 " + "x" * 2000)
    for step in range(20):
        if dist.get_rank() == 1 and step == 2:
            write_sample()
        dist.all_reduce(torch.ones(4))


def write_sample():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


if __name__ == "__main__":
    main()
