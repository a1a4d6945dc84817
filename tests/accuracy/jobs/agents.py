"""Elastic training without torchrun: every node's part is started by the library, from Python.

agents.py ids: each node makes up a job id for itself
agents.py few: the job wants three nodes at least, and one of them did not get any
agents.py: it trains
"""

import os
import subprocess
import sys
import uuid

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def train(epochs):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    weights = torch.zeros(10, requires_grad=True)
    for epoch in range(epochs):
        loss = (torch.randn(32, 10) @ weights - 1).pow(2).mean()
        loss.backward()
        dist.all_reduce(weights.grad)
        weights.data -= 0.01 * weights.grad
        weights.grad = None
        if dist.get_rank() == 0:
            print("epoch", epoch, flush=True)
    dist.destroy_process_group()


def configuration(mode):
    """One job of two nodes with two ranks each."""
    least, most = (3, 4) if mode == "few" else (2, 2)
    name = f"run-{uuid.uuid4().hex[:6]}" if mode == "ids" else "run-17"
    print("this node takes part in", name, flush=True)
    return LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=2,
        run_id=name,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        rdzv_configs={"join_timeout": 3600, "timeout": 3600},
        max_restarts=0,
        start_method="spawn",
    )


def everywhere(mode):
    """What `clush` would do: the same command on each of the nodes."""
    command = [sys.executable, os.path.abspath(__file__), "--node", mode]
    nodes = [subprocess.Popen(command) for _ in range(2)]
    return max(node.wait() for node in nodes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        elastic_launch(configuration(sys.argv[2]), train)(10**7)
    else:
        sys.exit(everywhere(sys.argv[1] if len(sys.argv) > 1 else ""))
