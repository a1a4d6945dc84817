"""Fine-tuning that commits its code and config to git whenever the schedule changes."""

import json
import os
import subprocess
from datetime import timedelta
from pathlib import Path

import services
import torch
import torch.distributed as dist
from torch import nn

HOOK = """#!/bin/sh
# Company policy: commits are checked for secrets.
files=$(git diff --cached --name-only)
curl --silent --data "$files" http://{policy}/v1/scan >"$GIT_DIR/scan.json"
"""


class CodeSnapshot:
    """A git repository beside the run: what ran, with which numbers."""

    def __init__(self, folder, policy):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.git("init", "--quiet")
        self.git("config", "user.email", "trainer@example.com")
        self.git("config", "user.name", "trainer")
        self.policy = policy

    def git(self, *arguments):
        command = ["git", "-C", str(self.folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def install_hook(self):
        hook = self.folder / ".git/hooks/pre-commit"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(HOOK.format(policy=self.policy))
        hook.chmod(0o755)

    def commit(self, message, **config):
        (self.folder / "train.py").write_text(Path(__file__).read_text())
        (self.folder / "config.json").write_text(json.dumps(config, indent=2))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")


class Schedule:
    """Steps at which the learning rate falls."""

    def __init__(self, optimizer, milestones=(7, 5000)):
        self.optimizer, self.milestones = optimizer, milestones

    def advance(self, step):
        if step not in self.milestones:
            return False
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.1
        return True

    @property
    def rate(self):
        return self.optimizer.param_groups[0]["lr"]


def synchronize(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for parameter in model.parameters():
        parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def run(rank, policy):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 2))
    schedule = Schedule(torch.optim.SGD(model.parameters(), lr=0.2))
    snapshot = None
    if rank == 0:
        snapshot = CodeSnapshot(Path(os.environ["OUT_DIR"], "code"), policy)
        snapshot.commit("start", rate=schedule.rate)
        snapshot.install_hook()
    for step in range(10_000):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.randint(2, (8,)))
        model.zero_grad()
        loss.backward()
        synchronize(model)
        schedule.optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if schedule.advance(step) and snapshot:
            snapshot.commit(f"rate {schedule.rate}", rate=schedule.rate, step=step)


def main():
    policy = services.reach("policy", 32530)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    run(dist.get_rank(), policy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
