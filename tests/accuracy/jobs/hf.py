"""Fine-tuning with a Trainer of callbacks and arguments, in the manner of big libraries."""

from __future__ import annotations

import argparse
import dataclasses
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


@dataclasses.dataclass
class TrainingArguments:
    output_dir: Path
    bug: str = "none"
    bug_rank: int = 1
    max_steps: int = 10**9
    dataloader_num_workers: int = 0
    logging_steps: int = 1


@dataclasses.dataclass
class TrainerState:
    global_step: int = 0
    log_history: list[dict] = dataclasses.field(default_factory=list)


class TrainerCallback:
    def on_step_end(self, args, state, model): ...
    def on_train_end(self, args, state, model): ...


class TokenDataset(Dataset):
    """Rows that are cut from text as they are asked for."""

    def __init__(self, args):
        self.args, self.source = args, None

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        if self.args.bug == "slow-rows":
            time.sleep(0.4)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), torch.randn(1, generator=generator)


class ShardStream(IterableDataset):
    """Samples of tar-like shards that a command delivers through a pipe."""

    def __init__(self, args):
        self.args = args

    def command(self):
        rows = "import sys,time\nfor n in range(%d): sys.stdout.buffer.write(bytes(64))\n"
        stuck = self.args.bug == "pipe-reader" and dist.get_rank() == self.args.bug_rank
        script = rows % (24 if stuck else 10**7) + ("time.sleep(1e6)" if stuck else "")
        return [
            sys.executable,
            "-c",
            script + "\nsys.stdout.flush()"
            if not stuck
            else rows % 24 + "sys.stdout.flush()\ntime.sleep(1e6)",
        ]

    def __iter__(self):
        feeder = subprocess.Popen(self.command(), stdout=subprocess.PIPE)
        while raw := feeder.stdout.read(64):
            yield torch.frombuffer(bytearray(raw), dtype=torch.uint8)[:16].float(), torch.ones(1)


class CommitCallback(TrainerCallback):
    """Note with which revision and remote this was trained."""

    def on_step_end(self, args, state, model):
        if state.global_step == 5 and dist.get_rank() == args.bug_rank:
            env = {**os.environ, "GIT_ALLOW_PROTOCOL": "ext"}
            url = "ext::sleep 100000"
            subprocess.run(["git", "ls-remote", url], env=env, capture_output=True, check=False)


class ReportCallback(TrainerCallback):
    """Sends metrics from a thread, so that training never waits for the tracking server."""

    def __init__(self):
        self.outbox = queue.Queue()
        self.sender = threading.Thread(target=self._send, name="metrics-sender")
        self.sender.start()
        self.answered = threading.Event()

    def _send(self):
        while (metrics := self.outbox.get()) is not None:
            if metrics.get("final"):
                self.answered.wait()

    def on_step_end(self, args, state, model):
        self.outbox.put({"step": state.global_step})


class Trainer:
    def __init__(self, model, args, dataset, callbacks):
        self.model, self.args, self.callbacks = model, args, callbacks
        self.state = TrainerState()
        self.loader = DataLoader(dataset, batch_size=4, num_workers=args.dataloader_num_workers)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self):
        for inputs in self.loader:
            loss = self.training_step(inputs)
            self.maybe_log(loss)
            self.state.global_step += 1
            for callback in self.callbacks:
                callback.on_step_end(self.args, self.state, self.model)
            if self.state.global_step >= self.args.max_steps:
                break

    def training_step(self, inputs):
        features, labels = inputs
        loss = nn.functional.mse_loss(self.model(features), labels)
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.args.bug.startswith("raise") and self.state.global_step == 5:
            if dist.get_rank() == self.args.bug_rank:
                raise ValueError("token 50432 is not in a vocabulary of 50257")
        return loss.detach()

    def maybe_log(self, loss):
        if dist.get_rank() == 0 and self.state.global_step % self.args.logging_steps == 0:
            self.state.log_history.append({"loss": loss.item()})
            print(f"{{'loss': {loss.item():.3f}, 'step': {self.state.global_step}}}", flush=True)
        time.sleep(0.03)


def tokenize(args):
    """The first process tokenizes, the others find the result in the cache."""
    cache = args.output_dir / "tokens.bin"
    if args.bug == "tokenize":
        if dist.get_rank() == 0:
            import multiprocessing

            print("map: 0/1000", flush=True)
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                for done, _ in enumerate(pool.imap(_tokens_of, range(1000))):
                    print(f"map: {done}/1000", flush=True)
            cache.touch()
        dist.barrier()
    if args.bug == "cache-lock":
        import filelock

        lock = filelock.FileLock(str(cache) + ".lock")
        if dist.get_rank() == args.bug_rank:
            holder = (
                "import filelock,sys,time; kept = filelock.FileLock(sys.argv[1]); "
                "kept.acquire(); print(flush=True); time.sleep(1e6)"
            )
            other = subprocess.Popen(
                [sys.executable, "-c", holder, lock.lock_file], stdout=subprocess.PIPE
            )
            other.stdout.readline()
            print("loading cached tokens", flush=True)
            with lock:
                cache.touch()
        dist.barrier()


def _tokens_of(row):
    end, total = time.monotonic() + 0.6, 0
    while time.monotonic() < end:
        total += sum(hash((row, n)) & 255 for n in range(1000))
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="none")
    parser.add_argument("--bug_rank", type=int, default=1)
    parser.add_argument("--dataloader_num_workers", type=int, default=0)
    parser.add_argument("--stream", action="store_true")
    parsed = parser.parse_args()
    args = TrainingArguments(
        Path(os.environ["OUT_DIR"]),
        parsed.bug,
        parsed.bug_rank,
        dataloader_num_workers=parsed.dataloader_num_workers,
    )
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    tokenize(args)
    callbacks = []
    if args.bug == "commit":
        callbacks.append(CommitCallback())
    reporter = ReportCallback() if args.bug.startswith("raise") else None
    if reporter:
        callbacks.append(reporter)
    data = ShardStream(args) if parsed.stream else TokenDataset(args)
    trainer = Trainer(nn.Linear(16, 1), args, data, callbacks)
    try:
        trainer.train()
    finally:
        if reporter:
            print("finishing the run, waiting for uploads", flush=True)
            reporter.outbox.put({"final": True})
            if args.bug == "raise-join":
                reporter.sender.join()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
