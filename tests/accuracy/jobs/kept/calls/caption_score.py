"""Captioning: now and then the first rank has its captions scored by a program that talks over pipes."""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

WORDS = "a man rides on the wave near two dogs".split()


def scorer():
    """The scoring program: SCORE lines with hypothesis and reference, then EVAL, answered by a number."""
    pending, wanted = [], 0
    while line := sys.stdin.readline():
        command, *fields = line.rstrip("\n").split(" ||| ")
        if command == "SCORE" and len(fields) == 2:
            pending.append(fields)
        elif command == "EVAL":
            wanted = int(fields[0])
        if wanted and len(pending) >= wanted:
            scores = [len(set(h.split()) & set(r.split())) / 9 for h, r in pending]
            print(sum(scores) / wanted, flush=True)
            pending, wanted = [], 0


class CaptionScorer:
    """Keeps the scoring program running, one question at a time."""

    def __init__(self):
        env = {k: v for k, v in os.environ.items() if "RANK" not in k}
        self.lock = threading.Lock()
        self.program = subprocess.Popen(
            [sys.executable, "-u", os.path.abspath(__file__), "scorer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def compute(self, hypotheses, references):
        with self.lock:
            for hypothesis, reference in zip(hypotheses, references):
                self._tell(f"SCORE ||| {hypothesis} ||| {reference}")
            self._tell(f"EVAL ||| {len(hypotheses)}")
            return float(self.program.stdout.readline())

    def _tell(self, line):
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()


class Captioner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, len(WORDS))

    def caption(self, image):
        return " ".join(WORDS[i] for i in self.net(image).topk(5).indices.tolist())


class Validation:
    def __init__(self, rank):
        self.rank = rank
        self.scorer = CaptionScorer() if rank == 0 else None

    @torch.no_grad()
    def __call__(self, model, step):
        score = torch.zeros(1)
        if self.scorer:
            captions = [model.caption(torch.randn(16)) for _ in range(6)]
            if step > 4:
                captions[-1] = "a man\nrides"  # the tokenizer knows the newline by now
            score += self.scorer.compute(captions, [" ".join(WORDS)] * 6)
        dist.broadcast(score, 0)
        return score.item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, model = dist.get_rank(), Captioner()
    validate, optimizer = Validation(rank), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100_000):
        loss = model.net(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if rank == 0:
            print("step", step, flush=True)
        if step % 4 == 3:
            score = validate(model, step)
            print(f"rank {rank} score {score:.3f}", flush=True)
        time.sleep(0.15)


if __name__ == "__main__":
    scorer() if sys.argv[1:] == ["scorer"] else main()
