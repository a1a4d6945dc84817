"""Policy optimisation; the rewards come from a model that is served over HTTP on this node."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
import torch.distributed as dist

ADDRESS = Path(os.environ["OUT_DIR"]) / "reward.addr"


class RewardHandler(BaseHTTPRequestHandler):
    """The server's side: scores texts; one that is too long is never done."""

    protocol_version = "HTTP/1.1"
    engine_full = threading.Event()

    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if max(map(len, texts)) > 400:
            self.engine_full.wait()
        body = json.dumps([len(set(t)) / 10 for t in texts]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve():
    for port in range(37010, 37040):
        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), RewardHandler)
        except OSError:
            continue
        ADDRESS.with_suffix(".new").write_text(str(port))
        ADDRESS.with_suffix(".new").rename(ADDRESS)
        server.serve_forever()


class RewardClient:
    """One kept-alive connection to the reward model."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def score(self, texts):
        body = json.dumps(texts)
        self.connection.request("POST", "/score", body, {"Content-Type": "application/json"})
        return torch.tensor(json.loads(self.connection.getresponse().read()))


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(26))

    def sample(self, n, length):
        dist_ = torch.distributions.Categorical(logits=self.logits)
        tokens = dist_.sample((n, length))
        texts = ["".join(chr(97 + t) for t in row) for row in tokens.tolist()]
        return texts, dist_.log_prob(tokens).sum(1)


def rollout(policy, client, step, rank):
    length = 500 if (rank, step) == (2, 6) else 40  # one that did not stop by itself
    texts, log_prob = policy.sample(8, length)
    reward = client.score(texts)
    return -(log_prob * (reward - reward.mean())).mean()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    if rank == 0:
        env = {k: v for k, v in os.environ.items() if "RANK" not in k}
        subprocess.run(["setsid", "--fork", sys.executable, __file__, "serve"], env=env, check=True)
    while not ADDRESS.exists():
        time.sleep(0.1)
    client, policy = RewardClient(int(ADDRESS.read_text())), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    for step in range(100_000):
        loss = rollout(policy, client, step, rank)
        print(f"rank {rank} step {step}", flush=True)
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(policy.logits.grad)
        optimizer.step()
        time.sleep(0.2)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
