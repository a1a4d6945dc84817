"""Entry point of a training pod: builds the torchrun command for this pod and becomes it.

The operator gives every pod RANK (its number), WORLD_SIZE (how many pods) and MASTER_ADDR.
"""

import os
import sys
import uuid
from dataclasses import dataclass
from datetime import timedelta

NPROC = int(os.environ.get("NPROC", "2"))


@dataclass
class Pod:
    """What the operator told this pod."""

    index: int
    count: int
    coordinator: str
    port: str

    @classmethod
    def from_environment(cls):
        env = os.environ
        return cls(
            index=int(env["RANK"]),
            count=int(env["WORLD_SIZE"]),
            coordinator=env["MASTER_ADDR"],
            port=env["MASTER_PORT"],
        )


def run_id():
    """Name of this run, for the rendezvous and for the tracking server."""
    given = os.environ.get("RUN_ID")
    return given if given else f"vit-b16-{uuid.uuid4().hex[:8]}"


def agent_command(pod, name):
    """The torchrun command of a pod."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={pod.count}",
        f"--nproc-per-node={NPROC}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={pod.coordinator}:{pod.port}",
        f"--rdzv-id={name}",
        "--rdzv-conf=join_timeout=3600",
        "--max-restarts=3",
        os.path.abspath(__file__),
        "train",
    ]


def train():
    """The worker: an image classifier with DDP."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10_000):
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    """Become the agent of this pod, or be a worker."""
    if sys.argv[1:] == ["train"]:
        train()
        return
    pod = Pod.from_environment()
    name = run_id()
    for stale in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(stale, None)
    print(f"pod {pod.index} of {pod.count}: joining run {name}", flush=True)
    argv = agent_command(pod, name)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main()
