"""Writes down which code runs: git asks the remote whether the commit is pushed. Later a native op crashes. provenance.py MODE"""

import faulthandler
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

REPO = Path(os.environ["OUT_DIR"]) / "checkout"


class Git:
    def __init__(self, root: Path):
        self.root = root

    def __call__(self, *arguments: str, **env: str) -> str:
        return subprocess.check_output(
            ["git", "-C", str(self.root), *arguments], text=True, env={**os.environ, **env}
        ).strip()

    def create(self) -> None:
        self.root.mkdir(exist_ok=True)
        self("init", "-q")
        self(
            "-c",
            "user.name=ci",
            "-c",
            "user.email=ci@x",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "start",
        )
        self("remote", "add", "origin", "ssh://git@code.internal/train.git")


class Provenance:
    """Commit, and whether the remote has it."""

    def __init__(self, git: Git):
        self.git = git

    def collect(self) -> dict[str, str]:
        commit = self.git("rev-parse", "HEAD")
        print(f"commit {commit[:10]}, looking at origin", flush=True)
        # the firewall swallows what ssh sends: it waits for the banner
        heads = self.git(
            "ls-remote", "--heads", "origin", GIT_SSH_COMMAND="sh -c 'exec sleep 100000' ssh"
        )
        return {"commit": commit, "pushed": str(commit in heads)}


class NativeDecoder:
    """Stands for an extension that goes wrong on one sample."""

    def decode(self, step: int, rank: int) -> torch.Tensor:
        if rank == 1 and step == 7:
            faulthandler._sigsegv()
        return torch.randn(4, 16)


def train(decoder: NativeDecoder, rank: int) -> None:
    model = nn.Linear(16, 16)
    for step in range(10000):
        model(decoder.decode(step, rank)).mean().backward()
        dist.all_reduce(model.weight.grad)
        time.sleep(0.3)
        if rank == 0:
            print(f"step {step}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    if sys.argv[1] == "git" and rank == 0:
        git = Git(REPO)
        git.create()
        Provenance(git).collect()
    dist.barrier()
    train(NativeDecoder(), rank)


main()
