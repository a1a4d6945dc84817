"""Checkpoints go straight to an object store, in parts; the store is throttled and takes them slowly.
Rank 0 uploads, the others wait at the barrier behind it.
"""

import http.client
import io
import time

import remote_services
import torch
import torch.distributed as dist
from common import Learner, join, say

PORT = 29230
PART = 2 << 20


class ObjectStore:
    """Multipart uploads over one kept connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def put_part(self, key: str, number: int, body: bytes) -> str:
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream"}
        self.connection.request("PUT", f"/{key}?partNumber={number}", io.BytesIO(body), headers)
        answer = self.connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise OSError(f"part {number} of {key}: {answer.status}")
        return answer.headers["ETag"]

    def upload(self, key: str, data: memoryview) -> list[str]:
        tags = []
        parts = (len(data) + PART - 1) // PART
        for number in range(parts):
            tags.append(
                self.put_part(key, number + 1, bytes(data[number * PART : (number + 1) * PART]))
            )
            say(f"{key}: part {number + 1}/{parts} stored")
        return tags


class Checkpointer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.store = ObjectStore(PORT) if rank == 0 else None

    def save(self, learner: Learner, step: int) -> None:
        if self.store is not None:
            buffer = io.BytesIO()
            moments = {f"moment{n}": torch.randn(1 << 20) for n in range(4)}
            torch.save(
                {"model": learner.model.module.state_dict(), **moments, "step": step}, buffer
            )
            say(f"checkpoint of step {step}: uploading {buffer.tell() >> 20} MiB")
            began = time.monotonic()
            self.store.upload(f"run-17/step-{step}.pt", buffer.getbuffer())
            say(f"checkpoint of step {step} uploaded in {time.monotonic() - began:.0f} s")
        dist.barrier()


def main() -> None:
    rank, _ = join()
    if rank == 0:
        remote_services.start("bucket", PORT)
    learner, checkpointer = Learner(), Checkpointer(rank)
    for step in range(1, 10_000):
        loss = learner.step()
        if rank == 0:
            say(f"step {step}: loss {loss:.4f}")
        if step % 20 == 0:
            checkpointer.save(learner, step)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
