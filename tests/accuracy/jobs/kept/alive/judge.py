"""RLHF with a judge behind HTTP: busy at first (503, asked again after a pause), then it streams.

Rank 2 asks for the rewards and broadcasts them. A round takes three quarters of a minute.
"""

import datetime
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist

PORT = 29110
ASKER = 2
TOKENS = 16


class Judge(BaseHTTPRequestHandler):
    """Turns down the first attempts of each request; streams a token each second and a half."""

    attempts: dict[str, int] = {}

    def do_POST(self) -> None:
        """One request for a judgement."""
        self.rfile.read(int(self.headers["Content-Length"]))
        name = self.headers["X-Request"]
        self.attempts[name] = self.attempts.get(name, 0) + 1
        if name != "warm" and self.attempts[name] < 4:
            self.send_response(503)
            self.send_header("Retry-After", str(3 * self.attempts[name]))
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(TOKENS):
            if name != "warm":
                time.sleep(1.5)
            self.wfile.write(f"data: {json.dumps({'token': number, 'score': 0.5})}\n".encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Client:
    """Asks until there is an answer."""

    def __init__(self, url: str, most: int = 8) -> None:
        self.url, self.most = url, most

    def stream(self, name: str, body: bytes) -> list[float]:
        """Scores as they come."""
        request = urllib.request.Request(self.url, body, {"X-Request": name})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return [json.loads(line[5:])["score"] for line in answer if line.startswith(b"data:")]

    def rewards(self, name: str, samples: torch.Tensor) -> torch.Tensor:
        """With a pause after each refusal, as long as the server asks for."""
        body = json.dumps(samples.tolist()).encode()
        for _ in range(self.most):
            try:
                return torch.tensor(self.stream(name, body))
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
                time.sleep(float(error.headers.get("Retry-After", 5)))
        raise RuntimeError("the judge is too busy")


def start_judge() -> None:
    """The service: no rank, and nothing of the job's."""
    ours = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    clean = {k: v for k, v in os.environ.items() if k not in ours and "TORCHELASTIC" not in k}
    command = ["setsid", "--fork", sys.executable, __file__, "serve"]  # nobody's child
    subprocess.run(command, env=clean, check=True)
    while True:
        try:
            Client(f"http://127.0.0.1:{PORT}/judge").stream("warm", b"[]")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.3)


def main() -> None:
    """Sample, ask, learn."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    rank = dist.get_rank()
    client = Client(f"http://127.0.0.1:{PORT}/judge")
    if rank == ASKER:
        start_judge()
    policy = torch.nn.Linear(32, 1)
    for step in range(60):
        rollouts = torch.randn(TOKENS, 32)
        rewards = torch.zeros(TOKENS)
        if rank == ASKER:
            rewards = client.rewards("warm" if step < 4 else f"step-{step}", rollouts)
        dist.broadcast(rewards, src=ASKER)
        loss = -(policy(rollouts).squeeze(1) * rewards).mean()
        loss.backward()
        dist.all_reduce(policy.weight.grad)
        if rank == 0:
            print(f"ppo step {step} reward {rewards.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        ThreadingHTTPServer(("127.0.0.1", PORT), Judge).serve_forever()
    else:
        main()
