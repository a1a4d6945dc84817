"""Object collectives over a group of their own, by one rank that a setting chose."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class Reporter:
    def __init__(self, how, chosen):
        self.how, self.chosen = how, chosen
        self.group = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))

    def publish(self, stats):
        if self.how == "gather":
            into = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
            dist.gather_object(stats, into, dst=0, group=self.group)
        elif self.how == "all":
            into = [None] * dist.get_world_size()
            dist.all_gather_object(into, stats, group=self.group)
        else:
            dist.monitored_barrier(self.group, timeout=timedelta(minutes=30))

    def __call__(self, step, stats):
        if self.chosen and step % 5 == 0:
            self.publish(stats)


def main(how):
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    report = Reporter(how, chosen=rank == 1)
    for step in range(1, 10000):
        time.sleep(0.2)
        grad = torch.ones(16)
        dist.all_reduce(grad)
        print(f"step {step} ", flush=True)
        report(step, {"step": step})


main(sys.argv[1])
