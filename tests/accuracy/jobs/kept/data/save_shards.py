"""Consolidated checkpoints in shards, each with a header and a sum, written by rank 0."""

import json
import os
import struct
import time
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

CHUNK = 1 << 20


class ShardWriter:
    """A header in JSON, then the bytes of the tensors; takes its name once it is complete."""

    def __init__(self, path):
        self.path = path
        self.partial = path.with_name(path.name + ".tmp")

    def write(self, tensors):
        header, at = {}, 0
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            header[name] = {"shape": list(tensor.shape), "data_offsets": [at, at + size]}
            at += size
        encoded = json.dumps(header).encode()
        total = 0
        with self.partial.open("wb") as file:
            file.write(struct.pack("<Q", len(encoded)) + encoded)
            for tensor in tensors.values():
                total = self._body(file, tensor, total)
            file.flush()
            os.fsync(file.fileno())
        self.partial.rename(self.path)
        return total

    def _body(self, file, tensor, total):
        view = memoryview(tensor.contiguous().view(-1).numpy()).cast("B")
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            total = zlib.crc32(piece, total)
            file.write(piece)
        return total


class CheckpointManager:
    """`save` is for all ranks; it returns once the checkpoint can be resumed from."""

    def __init__(self, root, rank, shard_bytes=8 << 20):
        self.root, self.rank, self.shard_bytes = Path(root), rank, shard_bytes

    def plan(self, state):
        shards, room = [{}], self.shard_bytes
        for name, tensor in state.items():
            size = tensor.numel() * tensor.element_size()
            if size > room and shards[-1]:
                shards.append({})
                room = self.shard_bytes
            shards[-1][name] = tensor
            room -= size
        return shards

    def save(self, step, model):
        if self.rank == 0:
            folder = self.root / f"step-{step}"
            folder.mkdir(parents=True)
            shards = self.plan(model.state_dict())
            for n, tensors in enumerate(shards, 1):
                ShardWriter(folder / f"model-{n:05d}-of-{len(shards):05d}.bin").write(tensors)
            (self.root / "latest").write_text(folder.name)
        dist.barrier()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(40)))
    probe = nn.Linear(1024, 1)
    manager = CheckpointManager(os.environ["PLACE"], rank)
    for step in range(1, 10_000):
        with torch.no_grad():
            hidden = model(torch.randn(2, 1024))
        loss = probe(hidden).square().mean()
        probe.zero_grad()
        loss.backward()
        dist.all_reduce(probe.weight.grad)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 6:
            manager.save(step, model)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
