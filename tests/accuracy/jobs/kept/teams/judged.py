"""Preference tuning with a code judge: a small HTTP service beside the trainers runs the samples.

The launcher starts the judge, then the ranks.
"""

import json
import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JUDGE_PORT = 30611
RANKS = 3


class Judge(BaseHTTPRequestHandler):
    """POST /score with a program; answers with what it printed."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = subprocess.run(
            ["sh", "-c", body["program"]], capture_output=True, text=True, check=False
        )
        answer = json.dumps({"score": float(done.returncode == 0)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def serve():
    ThreadingHTTPServer(("127.0.0.1", JUDGE_PORT), Judge).serve_forever()


class JudgeClient:
    def __init__(self, url: str, threads: int = 4):
        self.url, self.pool = url, ThreadPoolExecutor(threads, thread_name_prefix="judge")

    def _score(self, program: str) -> float:
        request = urllib.request.Request(self.url, json.dumps({"program": program}).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)["score"]

    def score_all(self, programs: list[str]) -> list[float]:
        return list(self.pool.map(self._score, programs))


def sample(rank: int, step: int) -> list[str]:
    """What the policy wrote. Now and then it waits for input that never comes, or forever."""
    programs = [f"test {i} -ge {step % 3}" for i in range(4)]
    if rank == 2 and step == 9:
        programs[1] = "tail -f /dev/null"
    return programs


def train(rank: int):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    client = JudgeClient(f"http://127.0.0.1:{JUDGE_PORT}/score")
    weight = torch.zeros(64, requires_grad=True)
    for step in range(500):
        rewards = torch.tensor(client.score_all(sample(rank, step)))
        ((weight.mean() - rewards) ** 2).mean().backward()
        dist.all_reduce(weight.grad)
        with torch.no_grad():
            weight -= 0.1 * weight.grad / RANKS
        weight.grad = None
        if rank == 0:
            print(f"step {step} reward {rewards.mean():.2f}", flush=True)


def main():
    judge = subprocess.Popen([sys.executable, __file__, "judge"])
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", str(rank)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "LOCAL_RANK": str(rank),
            },
        )
        for rank in range(RANKS)
    ]
    codes = [one.wait() for one in ranks]
    judge.terminate()
    sys.exit(max(codes))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["judge"]:
            serve()
        case ["rank", rank]:
            import time

            time.sleep(1.0)  # the judge has to listen
            train(int(rank))
        case _:
            main()
