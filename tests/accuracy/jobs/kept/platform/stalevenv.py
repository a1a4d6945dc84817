"""Trains through a cluster's own library, gradkit, which each host has in an environment of its own:
one host was left out of the last upgrade, from 1.4.2 to 1.5.0.

stalevenv.py RANK...   # these ranks have the old one
"""

import os
import subprocess
import sys
from pathlib import Path

OLD, NEW = "1.4.2", "1.5.0"
COMMON = '''\
"""gradkit: scaled gradients for data parallel training."""

import torch
import torch.distributed as dist

__version__ = "{version}"


class Scaler:
    """Keeps the loss scale, and averages gradients."""

    def __init__(self, start: float = 1024.0) -> None:
        self.scale = torch.tensor([start])
        self.steps = 0

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.scale

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.average(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        self.steps += 1
        self.update()

    def average(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for weights in group["params"]:
                dist.all_reduce(weights.grad)
                weights.grad /= self.scale * dist.get_world_size()
'''
UPDATE = {
    OLD: """
    def update(self) -> None:
        if self.steps % 8 == 0:
            self.scale *= 1.5
""",
    NEW: '''
    def update(self) -> None:
        if self.steps % 8 == 0:
            self.scale *= 1.5
            self.agree()

    def agree(self) -> None:
        """Since 1.5: nobody drifts away from the scale that rank 0 has."""
        dist.broadcast(self.scale, src=0)
''',
}


def install(site: Path, version: str) -> Path:
    """What `pip install --target` leaves of that version."""
    package, metadata = site / "gradkit", site / f"gradkit-{version}.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text(COMMON.format(version=version) + UPDATE[version])
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: gradkit\nVersion: {version}\n"
    )
    (metadata / "RECORD").write_text("gradkit/__init__.py,,\n")
    return site


def hosts(stale: set[int], world: int) -> None:
    envs = Path(os.environ["OUT_DIR"], "envs")
    sites = {one: install(envs / f"train-{one}" / "site-packages", one) for one in (OLD, NEW)}
    started = []
    for rank in range(world):
        told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        told["PYTHONPATH"] = str(sites[OLD if rank in stale else NEW])
        argv = [sys.executable, __file__, "--train"]
        started.append(subprocess.Popen(argv, env={**os.environ, **told}))
    for process in started:
        process.wait()


def train() -> None:
    from datetime import timedelta

    import gradkit
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), gradkit.Scaler()
    while True:
        inputs = torch.randn(16, 32)
        loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
        scaler.scaled(loss).backward()
        scaler.step(optimizer)
        if dist.get_rank() == 1:
            print(f"iteration {scaler.steps} loss {loss.item():.3f}", flush=True)
        elif scaler.steps == 7:
            print("iteration 7 done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train()
    else:
        hosts({int(one) for one in sys.argv[1:]}, 4)
