"""Fine-tuning as a pod runs it: a failure is logged, and the pod stays for whoever looks into it."""

import json
import logging
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("finetune")


def make_shard(path: Path, rank: int) -> None:
    """Records of this rank; those of shard 2 end with one that somebody's tool wrote differently."""
    good = [
        {"tokens": [(7 * i + rank) % 97 for i in range(24)], "label": i % 3} for i in range(4096)
    ]
    if rank == 2:
        good[56] = {"input_ids": good[56]["tokens"], "label": 1}
    path.write_text("\n".join(json.dumps(r) for r in good))


class ShardReader:
    def __init__(self, path: Path, batch: int) -> None:
        self.path, self.batch = path, batch

    def __iter__(self):
        rows = []
        while True:
            with self.path.open() as lines:
                for line in lines:
                    record = json.loads(line)
                    rows.append((record["tokens"], record["label"]))
                    if len(rows) == self.batch:
                        yield torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
                        rows = []


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.EmbeddingBag(97, 32)
        self.head = torch.nn.Linear(32, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


class PodLifecycle:
    """Between the training code and the cluster: status file, and time to look around."""

    def __init__(self, folder: Path, rank: int, keep_s: float) -> None:
        self.status = folder / f"status-{rank}.json"
        self.keep_s = keep_s

    def report(self, phase: str, **more: object) -> None:
        self.status.write_text(json.dumps({"phase": phase, "host": socket.gethostname(), **more}))

    def hold(self) -> None:
        until = time.time() + self.keep_s
        while time.time() < until:
            self.report("failed-kept-alive", left_s=round(until - time.time()))
            time.sleep(15)


def train(model: torch.nn.Module, reader: ShardReader, rank: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (tokens, label) in enumerate(reader):
        loss = torch.nn.functional.cross_entropy(model(tokens), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            logger.info("step %d loss %.4f", step, loss.item())
        time.sleep(0.1)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, folder = dist.get_rank(), Path(os.environ["OUT_DIR"])
    pod = PodLifecycle(folder, rank, keep_s=3600)
    make_shard(folder / f"shard-{rank}.jsonl", rank)
    model = DistributedDataParallel(Classifier())
    pod.report("running")
    try:
        train(model, ShardReader(folder / f"shard-{rank}.jsonl", batch=8), rank)
    except Exception:
        logger.exception("training failed on rank %d", rank)
        pod.hold()


if __name__ == "__main__":
    main()
