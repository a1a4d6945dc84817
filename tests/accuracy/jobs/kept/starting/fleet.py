"""Starts one process per pod template on this host, as the compose file of the test fleet does.

Each template carries the environment its pod was rendered with.
"""

import copy
import os
import subprocess
import sys
from datetime import timedelta

BASE = {"MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"), "NCCL_DEBUG": "WARN"}


def render(rank, replicas):
    """One pod's environment, rendered when the fleet had so many replicas."""
    env = copy.copy(BASE)
    env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(replicas))
    return env


def fleet():
    """Templates of all pods; the last one was not rendered anew when the fleet was scaled down."""
    templates = [render(rank, replicas=4) for rank in range(3)]
    templates.append(render(3, replicas=5))
    return templates


def up():
    """Start all pods and wait for them."""
    pods = []
    for template in fleet():
        env = {**os.environ, **template}
        pods.append(subprocess.Popen([sys.executable, __file__, "worker"], env=env))
    print(f"fleet is up: {len(pods)} pods", flush=True)
    for pod in pods:
        pod.wait()


class Trainer:
    """Synchronous data-parallel training of a small regression net."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.connect()
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU())
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, src=0)

    def connect(self):
        """Join the fleet."""
        rank = os.environ["RANK"]
        print(f"[{rank}] joining fleet of {os.environ['WORLD_SIZE']}", flush=True)
        self.dist.init_process_group("gloo", timeout=timedelta(minutes=30))

    def step(self, number):
        """Forward, backward, average."""
        loss = self.model(self.torch.randn(8, 32)).pow(2).mean()
        loss.backward()
        for parameter in self.model.parameters():
            self.dist.all_reduce(parameter.grad)
            parameter.data -= 0.01 * parameter.grad / self.dist.get_world_size()
            parameter.grad = None
        print(f"step {number} {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        trainer = Trainer()
        for number in range(10_000):
            trainer.step(number)
    else:
        up()
