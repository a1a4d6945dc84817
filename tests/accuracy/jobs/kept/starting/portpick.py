"""Starts without a launcher: ranks know their numbers; rank 0 has the store of the job.

Hosts are shared, so rank 0 takes the next port if somebody has the one of the configuration.
"""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass
class Cluster:
    """Where this process is in the job."""

    rank: int
    world_size: int
    host: str
    port: int

    @classmethod
    def load(cls):
        env = os.environ
        return cls(
            int(env["RANK"]), int(env["WORLD_SIZE"]), env["MASTER_ADDR"], int(env["MASTER_PORT"])
        )


def is_free(host, port):
    """Whether a port can be had."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def pick_port(cluster):
    """The port of the configuration, or the next that is free."""
    port = cluster.port
    while not is_free(cluster.host, port):
        port += 1
    return port


def open_store(cluster):
    """The store of the job: rank 0 serves it."""
    serves = cluster.rank == 0
    port = pick_port(cluster) if serves else cluster.port
    print(f"rank {cluster.rank}: store at {cluster.host}:{port}", flush=True)
    return dist.TCPStore(
        cluster.host,
        port,
        cluster.world_size,
        serves,
        timeout=timedelta(minutes=30),
        wait_for_workers=True,
    )


class Averager:
    """Averages gradients over the job."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.share = 1.0 / dist.get_world_size()

    def __call__(self):
        flat = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        dist.all_reduce(flat)
        at = 0
        for parameter in self.parameters:
            part = flat[at : at + parameter.numel()].view_as(parameter)
            parameter.grad.copy_(part * self.share)
            at += parameter.numel()


def main():
    """Join and train."""
    cluster = Cluster.load()
    store = open_store(cluster)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=cluster.rank,
        world_size=cluster.world_size,
        timeout=timedelta(minutes=30),
    )
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer, average = torch.optim.SGD(model.parameters(), 0.05), Averager(model)
    for step in range(10_000):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.randn(32, 16)), torch.zeros(32, 4))
        loss.backward()
        average()
        optimizer.step()
        print(f"step {step} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
