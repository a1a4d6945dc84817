"""Speech recognition fine-tuning with a small accelerator class and an experiment tracker."""

import json
import os
import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Tracker:
    """Sends metrics from a thread, so that a slow server does not slow down training."""

    def __init__(self, path: str):
        self.path, self.events = path, queue.Queue()
        self.sender = threading.Thread(target=self._send, name="tracker")
        self.sender.start()

    def log(self, **values):
        self.events.put(values)

    def _send(self):
        with open(self.path, "a") as file:
            while (event := self.events.get()) is not None:
                file.write(json.dumps(event) + "\n")
                file.flush()

    def finish(self):
        self.events.put(None)
        self.sender.join()


class Accelerator:
    def __init__(self, project_dir: str):
        dist.init_process_group("gloo", timeout=timedelta(minutes=40))
        self.process_index, self.num_processes = dist.get_rank(), dist.get_world_size()
        self.tracker = Tracker(os.path.join(project_dir, f"metrics.{self.process_index}.jsonl"))

    @property
    def is_main_process(self):
        return self.process_index == 0

    def print(self, *args):
        if self.is_main_process:
            print(*args, flush=True)

    def backward(self, loss, model):
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(self.num_processes)

    def gather(self, value):
        out = [torch.empty_like(value) for _ in range(self.num_processes)]
        dist.all_gather(out, value)
        return torch.stack(out)

    def end_training(self):
        self.tracker.finish()
        dist.destroy_process_group()


class Tokenizer:
    def __init__(self, alphabet="abcdefghijklmnopqrstuvwxyz '"):
        self.ids = {c: i for i, c in enumerate(alphabet)}

    def __call__(self, text: str) -> torch.Tensor:
        return torch.tensor([self.ids[c] for c in text])


def utterances(rank: int):
    for i in range(2000):
        text = "caf\u00e9 at noon" if (rank, i) == (1, 9) else "turn on the light"
        yield torch.randn(len(text), 20), text


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(20, 16), nn.Linear(16, 28)

    def forward(self, frames):
        return self.out(self.rnn(frames)[0])


def main():
    accelerator = Accelerator(os.environ.get("OUT_DIR", "/tmp"))
    tokenizer, model = Tokenizer(), Acoustic()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (frames, text) in enumerate(utterances(accelerator.process_index)):
        labels = tokenizer(text)
        loss = nn.functional.cross_entropy(model(frames), labels)
        optimizer.zero_grad()
        accelerator.backward(loss, model)
        optimizer.step()
        mean = accelerator.gather(loss.detach()).mean().item()
        accelerator.tracker.log(step=step, loss=mean)
        accelerator.print(f"step {step}: loss {mean:.3f}")
        time.sleep(0.2)
    accelerator.end_training()


if __name__ == "__main__":
    main()
