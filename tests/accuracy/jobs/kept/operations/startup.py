"""Pretraining entry point: node configuration, data manifest, process group. startup.py MODE"""

import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

OUT = Path(os.environ["OUT_DIR"])
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


@dataclass
class Endpoint:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"tcp://{self.host}:{self.port}"


class NodeConfig:
    """What the provisioning system wrote on this node; the environment is the fallback."""

    def __init__(self, path: Path):
        self.values = json.loads(path.read_text()) if path.exists() else {}

    def endpoint(self) -> Endpoint:
        return Endpoint(
            self.values.get("master_addr", os.environ["MASTER_ADDR"]),
            int(self.values.get("master_port", os.environ["MASTER_PORT"])),
        )


class Manifest:
    """The list of shards that were staged to the node's disk."""

    def __init__(self, root: Path):
        self.root = root

    def stage(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        time.sleep(3)

    def load(self) -> list[str]:
        with open(self.root / "manifest.json") as file:
            return json.load(file)["shards"]


def provision(mode: str) -> None:
    """What lies on the nodes before the job starts."""
    etc = OUT / f"node{RANK}"
    etc.mkdir(exist_ok=True)
    if mode == "drift" and RANK == 2:
        (etc / "cluster.json").write_text(json.dumps({"master_port": 32003}))
    if not (mode == "manifest" and RANK == 2):
        shards = [f"shard-{n:05d}.tar" for n in range(8)]
        (etc / "data").mkdir(exist_ok=True)
        (etc / "data" / "manifest.json").write_text(json.dumps({"shards": shards}))


def join(endpoint: Endpoint) -> None:
    print(f"rank {RANK}: joining {endpoint.url} as {RANK} of {WORLD}", flush=True)
    dist.init_process_group(
        "gloo", init_method=endpoint.url, rank=RANK, world_size=WORLD, timeout=timedelta(minutes=30)
    )


def train(shards: list[str]) -> None:
    model = nn.Linear(16, 16)
    for step, _ in enumerate(shards * 1000):
        model(torch.ones(2, 16)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        time.sleep(0.2)
        if RANK == 0:
            print(f"step {step}", flush=True)


def main() -> None:
    mode = sys.argv[1]
    provision(mode)
    config = NodeConfig(OUT / f"node{RANK}" / "cluster.json")
    manifest = Manifest(OUT / f"node{RANK}" / "data")
    manifest.stage()
    shards = manifest.load()
    join(config.endpoint())
    train(shards)


main()
