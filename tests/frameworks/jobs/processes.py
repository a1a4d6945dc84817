"""Processes of multiprocessing, started as the first argument says: rank 1 waits for an event."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

import torch
import torch.distributed as dist


def work(number, port, title):
    if title:
        import setproctitle

        setproctitle.setproctitle(f"pretrain llama-8b rank {number} of 2" + " " * 40)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=number, world_size=2)
    for step in range(20):
        if number == 1 and step == 2:
            wait_for_writer()
        dist.all_reduce(torch.ones(4))


def wait_for_writer():
    print("HANGS", os.getpid(), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    how, port, *title = sys.argv[1:]
    if how == "mp.spawn":
        torch.multiprocessing.spawn(work, (port, title), nprocs=2)
    else:
        context = multiprocessing.get_context(how)
        workers = [context.Process(target=work, args=(number, port, title)) for number in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
