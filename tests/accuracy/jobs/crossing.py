"""A hybrid-parallel step: the statistics of experts and the gradients of shards, in two groups.

crossing.py MODE: what the last rank does in step 6.
"""

import os
import sys
import time

MODE = sys.argv[1]
if os.environ["RANK"] == os.environ.get("UNRECORDED"):
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Hybrid:
    """Two groups, and what is exchanged in them."""

    def __init__(self):
        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.step_number = 0
        everyone = list(range(self.world))
        left, right = (everyone[:-1], everyone[1:]) if MODE == "overlap" else (everyone, everyone)
        self.experts, self.shards = dist.new_group(left), dist.new_group(right)
        self.members = left, right
        self.statistics, self.gradients = torch.ones(4), torch.ones(64)

    @property
    def late(self):
        culprit = 1 if MODE == "overlap" else self.world - 1
        return self.step_number == 6 and self.rank == culprit

    def sync_experts(self):
        if self.rank in self.members[0]:
            dist.all_reduce(self.statistics, group=self.experts)

    def sync_shards(self):
        if self.rank in self.members[1]:
            dist.all_reduce(self.gradients, group=self.shards)

    def step(self):
        if MODE == "loop":
            groups = {"experts": self.experts, "shards": self.shards}
            for name in sorted(groups, reverse=self.late):
                dist.all_reduce(self.statistics, group=groups[name])
        elif MODE == "handles":
            pair = [(self.statistics, self.experts), (self.gradients, self.shards)]
            for tensor, group in reversed(pair) if self.late else pair:
                dist.all_reduce(tensor, group=group, async_op=True).wait()
        elif MODE == "guard":
            if not self.late:
                self.sync_experts()
            self.sync_shards()
        elif self.late:
            self.sync_shards()
            self.sync_experts()
        else:
            self.sync_experts()
            self.sync_shards()


job = Hybrid()
for job.step_number in range(10**6):
    job.step()
    if job.rank == 0:
        print(f"step {job.step_number}", flush=True)
    time.sleep(0.05)
