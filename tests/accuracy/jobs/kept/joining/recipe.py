"""A recipe runner: reads its settings, joins the others, builds the model, trains by callbacks."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Callback:
    def on_begin(self, runner):
        pass

    def on_step(self, runner, loss):
        pass


class Progress(Callback):
    def on_begin(self, runner):
        runner.say(f"training starts on {dist.get_world_size()} ranks")

    def on_step(self, runner, loss):
        runner.say(f"step {runner.step} loss {loss:.4f}")


class MeanLoss(Callback):
    """Mean loss over all ranks, every other step."""

    def on_step(self, runner, loss):
        if runner.step % 2 == 0:
            value = torch.tensor([loss])
            dist.all_reduce(value)
            runner.mean = value.item() / dist.get_world_size()


class Runner:
    def __init__(self, callbacks):
        self.callbacks, self.step, self.mean = callbacks, 0, 0.0
        self.rank = int(os.environ["RANK"])

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def join(self):
        """Join the process group of everybody."""
        nic = os.environ.get("GLOO_SOCKET_IFNAME", "-")
        print(f"[{self.rank}] {os.uname().nodename}: joining by {nic}", flush=True)
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))

    def fit(self, steps):
        self.join()
        model = nn.parallel.DistributedDataParallel(nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for callback in self.callbacks:
            callback.on_begin(self)
        for self.step in range(steps):
            inputs = torch.randn(16, 32)
            loss = (model(inputs) - inputs[:, :4]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.4)
            for callback in self.callbacks:
                callback.on_step(self, loss.item())


if __name__ == "__main__":
    Runner([MeanLoss(), Progress()]).fit(steps=100_000)
