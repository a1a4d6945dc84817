"""GRPO with a learner and rollout ranks; rewards come from a judge model behind HTTP, by asyncio."""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

PORT = 31020


async def judge_server() -> None:
    """What the other team runs: an engine that loses a request under load."""

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        ask = json.loads(await reader.readexactly(length))
        if ask["user"] == "rollout-2" and ask["iteration"] >= 7 and ask["index"] == 2:
            await asyncio.sleep(3600)
        await asyncio.sleep(0.05)
        body = json.dumps({"score": len(ask["text"]) % 5}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", PORT, reuse_port=True)
    async with server:
        await server.serve_forever()


@dataclass
class Sample:
    text: str
    score: float = 0.0


class JudgeClient:
    """Asks the judge for many samples at a time."""

    def __init__(self, user: str, concurrency: int = 4) -> None:
        self.user, self.concurrency = user, concurrency

    async def _post(self, payload: dict) -> dict:
        body = json.dumps(payload).encode()
        for _ in range(100):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.2)
        writer.write(
            b"POST /v1/score HTTP/1.1\r\nHost: judge\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        await writer.drain()
        answer = await reader.read(-1)
        writer.close()
        return json.loads(answer.split(b"\r\n\r\n", 1)[1])

    async def _score(
        self, sample: Sample, iteration: int, index: int, gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            payload = {
                "user": self.user,
                "text": sample.text,
                "iteration": iteration,
                "index": index,
            }
            sample.score = (await self._post(payload))["score"]

    async def score_all(self, samples: list[Sample], iteration: int) -> None:
        gate = asyncio.Semaphore(self.concurrency)
        await asyncio.gather(*(self._score(s, iteration, i, gate) for i, s in enumerate(samples)))


class RolloutWorker:
    def __init__(self, rank: int) -> None:
        self.rank, self.judge = rank, JudgeClient(f"rollout-{rank}")
        self.weights = torch.zeros(4)

    def generate(self) -> list[Sample]:
        time.sleep(0.1)
        return [Sample("x" * int(n)) for n in torch.randint(1, 50, (6,))]

    def run_iteration(self, iteration: int) -> None:
        samples = self.generate()
        asyncio.run(self.judge.score_all(samples, iteration))
        dist.gather_object([s.score for s in samples], None, dst=0)
        box = [None]
        dist.broadcast_object_list(box, src=0)
        self.weights = box[0]


class Learner:
    def __init__(self) -> None:
        self.weights = torch.zeros(4)

    def run_iteration(self, iteration: int) -> None:
        gathered = [None] * dist.get_world_size()
        dist.gather_object([], gathered, dst=0)
        scores = torch.tensor([s for one in gathered for s in one], dtype=torch.float32)
        self.weights += 0.01 * scores.mean()
        dist.broadcast_object_list([self.weights], src=0)
        print(f"[learner] step {iteration} reward {scores.mean():.3f} n={len(scores)}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    if rank == 0:
        clean = {
            k: v
            for k, v in os.environ.items()
            if "RANK" not in k and "WORLD" not in k and "TORCHELASTIC" not in k
        }
        subprocess.run(
            f"{sys.executable} {__file__} judge </dev/null &", shell=True, env=clean, check=True
        )
    role = Learner() if rank == 0 else RolloutWorker(rank)
    for iteration in range(1, 200):
        role.run_iteration(iteration)


if __name__ == "__main__":
    asyncio.run(judge_server()) if sys.argv[1:] == ["judge"] else main()
