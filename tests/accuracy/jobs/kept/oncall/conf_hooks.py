"""Detector training: runner, hooks and heads are made from a config by registries.

The base config is merged with conf.d/HOST.json of the machine, as operations lay it down there.
"""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

HOOKS, HEADS = {}, {}
BASE = {
    "head": {"type": "BoxHead", "width": 32},
    "iters": 2000,
    "hooks": [{"type": "TextLog", "every": 1}, {"type": "Evaluate", "every": 500, "batches": 4}],
}


def register(table):
    def put(cls):
        table[cls.__name__] = cls
        return cls

    return put


def build(table, spec):
    spec = dict(spec)
    return table[spec.pop("type")](**spec)


def load_config(folder, host):
    config = json.loads(json.dumps(BASE))
    extra = folder / f"{host}.json"
    if extra.exists():
        for name, values in json.loads(extra.read_text()).items():
            for hook in config["hooks"]:
                if hook["type"] == name:
                    hook.update(values)
    return config


@register(HEADS)
class BoxHead(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = torch.nn.Linear(16, width)
        self.box = torch.nn.Linear(width, 4)

    def forward(self, x):
        return self.box(self.body(x).relu())


@register(HOOKS)
class TextLog:
    def __init__(self, every):
        self.every = every

    def after_iter(self, runner):
        if runner.rank == 0 and runner.iter % self.every == 0:
            print(f"step {runner.iter} loss_box {runner.loss:.4f}", flush=True)


@register(HOOKS)
class Evaluate:
    def __init__(self, every, batches):
        self.every, self.batches = every, batches

    def after_iter(self, runner):
        if runner.iter % self.every == 0:
            scores = self.collect(runner)
            if runner.rank == 0:
                print("mAP", sum(scores) / len(scores), flush=True)

    def collect(self, runner):
        dist.barrier()  # nobody starts before the weights are the same everywhere
        with torch.no_grad():
            found = [runner.head(torch.randn(4, 16)).mean().item() for _ in range(self.batches)]
        scores = [None] * runner.world
        dist.all_gather_object(scores, sum(found))
        return scores


class Runner:
    def __init__(self, config):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.config, self.iter, self.loss = config, 0, 0.0
        self.head = build(HEADS, config["head"])
        self.hooks = [build(HOOKS, spec) for spec in config["hooks"]]
        self.opt = torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.9)

    def sync_grads(self):
        works = [dist.all_reduce(p.grad, async_op=True) for p in self.head.parameters()]
        for work, p in zip(works, self.head.parameters()):
            work.wait()
            p.grad /= self.world

    def run(self):
        while self.iter < self.config["iters"]:
            self.iter += 1
            x = torch.randn(8, 16)
            loss = (self.head(x) - x[:, :4]).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.sync_grads()
            self.opt.step()
            self.loss = loss.item()
            time.sleep(0.25)
            for hook in self.hooks:
                hook.after_iter(self)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    folder = Path(os.environ["OUT_DIR"], "conf.d")
    folder.mkdir(exist_ok=True)
    # left from a quick experiment on that one machine
    (folder / "gpu-03.json").write_text(json.dumps({"Evaluate": {"every": 7}}))
    dist.barrier()
    host = f"gpu-0{dist.get_rank() + 1}"
    Runner(load_config(folder, host)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
