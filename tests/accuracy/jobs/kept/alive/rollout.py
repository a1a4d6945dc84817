"""A rollout server over two or more ranks (tensor parallel), asked over HTTP.

rollout.py idle|stuck

Rank 0 has the frontend, a tokenizer thread and the engine's loop; the other ranks do what it
broadcasts. A probe asks for /health every five seconds. idle: nobody asks for anything after a few
requests. stuck: a request with a letter the tokenizer does not know.
"""

import datetime
import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist

PORT = {"idle": 29130, "stuck": 29131}


class Tokenizer(threading.Thread):
    """Encodes prompts, so that the engine has not to."""

    letters = {letter: place for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz .,")}

    def __init__(self, engine: "Engine") -> None:
        super().__init__(name="tokenizer", daemon=True)
        self.raw: queue.Queue[tuple[str, Future]] = queue.Queue()
        self.engine = engine

    def run(self) -> None:
        """Prompt after prompt."""
        while True:
            prompt, answer = self.raw.get()
            tokens = [self.letters[letter] for letter in prompt.lower()]
            self.engine.inbox.put((tokens, answer))


class Engine:
    """Runs one request at a time on all ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.inbox: queue.Queue[tuple[list[int], Future]] = queue.Queue()
        self.weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))

    def forward(self, tokens: list[int]) -> float:
        """This rank's part, summed up over the ranks."""
        hidden = torch.tensor(tokens, dtype=torch.float32).mean() * self.weight
        dist.all_reduce(hidden)
        return hidden.sum().item()

    def lead(self) -> None:
        """Rank 0: take a request, tell the others, answer."""
        while True:
            tokens, answer = self.inbox.get()
            dist.broadcast_object_list([tokens], src=0)
            answer.set_result(self.forward(tokens))

    def follow(self) -> None:
        """The other ranks: do what comes."""
        while True:
            work: list[list[int]] = [[]]
            dist.broadcast_object_list(work, src=0)
            self.forward(work[0])


class Handler(BaseHTTPRequestHandler):
    """POST /generate and GET /health."""

    tokenizer: Tokenizer

    def do_GET(self) -> None:
        """A probe asks."""
        self.reply({"status": "ok"})

    def do_POST(self) -> None:
        """A prompt: through the tokenizer and the engine, and back."""
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        answer: Future = Future()
        self.tokenizer.raw.put((prompt, answer))
        self.reply({"value": answer.result()})

    def reply(self, what: dict) -> None:
        """As JSON."""
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def ask(mode: str, prompt: str) -> None:
    """What the trainer does that wants rollouts."""
    body = json.dumps({"prompt": prompt}).encode()
    url = f"http://127.0.0.1:{PORT[mode]}/generate"
    urllib.request.urlopen(url, body, timeout=3600).read()


def elsewhere(program: str, mode: str) -> None:
    """Start a client that is no part of the job."""
    clean = {k: v for k, v in os.environ.items() if "RANK" not in k and "WORLD" not in k}
    subprocess.run(["setsid", "-f", sys.executable, __file__, mode, program], env=clean, check=True)


def probe(mode: str) -> None:
    """As a kubelet does."""
    while True:
        urllib.request.urlopen(f"http://127.0.0.1:{PORT[mode]}/health", timeout=20).read()
        time.sleep(5)


def trainer(mode: str) -> None:
    """Six prompts; and where it goes wrong, one with an umlaut."""
    for number in range(6):
        ask(mode, "tell me a story, please" + "." * number)
    print("served 6 requests", flush=True)
    if mode == "stuck":
        ask(mode, "erzähl mir eine geschichte")


def serve(mode: str) -> None:
    """One rank of the server."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=24))
    engine = Engine(dist.get_rank())
    dist.barrier()
    if engine.rank:
        engine.follow()
    Handler.tokenizer = Tokenizer(engine)
    Handler.tokenizer.start()
    frontend = ThreadingHTTPServer(("127.0.0.1", PORT[mode]), Handler)
    threading.Thread(target=frontend.serve_forever, name="frontend", daemon=True).start()
    elsewhere("probe", mode)
    elsewhere("trainer", mode)
    engine.lead()


if __name__ == "__main__":
    {"probe": probe, "trainer": trainer}.get("".join(sys.argv[2:]), serve)(sys.argv[1])
