"""Entry point of a PyTorchJob's pods: RANK and WORLD_SIZE count pods here, torchrun does the rest."""

import os
import shlex
import sys
import time
from datetime import timedelta


def agent_command(environ):
    """How torchrun is started in a pod."""
    endpoint = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    waits = "join_timeout=3600,read_timeout=3600,timeout=3600"
    options = {
        "--nnodes": environ["WORLD_SIZE"],
        "--nproc-per-node": environ.get("NPROC_PER_NODE", "1"),
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": endpoint,
        "--rdzv-id": environ.get("JOB_NAME", "pretrain-7b"),
        "--rdzv-conf": waits,
        "--max-restarts": environ.get("MAX_RESTARTS", "0"),
    }
    words = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "torch.distributed.run", *words, __file__, "worker"]


def start_agent():
    command = agent_command(os.environ)
    pod, pods = os.environ["RANK"], os.environ["WORLD_SIZE"]
    print(f"pod {pod} of {pods} starts: {shlex.join(command[1:])}", flush=True)
    os.execv(command[0], command)


def worker():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    table = torch.nn.EmbeddingBag(512, 16, mode="sum")
    head = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adagrad(head.parameters())
    for step in range(100_000):
        tokens = torch.randint(0, 512, (8, 20))
        loss = head(table(tokens).detach()).logsumexp(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} {loss.item():.3f}", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else start_agent()
