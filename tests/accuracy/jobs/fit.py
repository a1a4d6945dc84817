"""A module with hooks and a loop that calls them; sharded by FSDP2 or plain."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class LitModule(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case = case
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        self.logged = {}
        self.global_rank = dist.get_rank()

    def training_step(self, batch, batch_idx):
        return (self.encoder(batch) - batch).square().mean()

    def validation_step(self, batch, batch_idx):
        error = (self.encoder(batch) - batch).abs().mean()
        if self.case == "log-rank0" and self.global_rank == 0 and batch_idx == 2:
            self.log("val_error", error, sync_dist=True)

    def log(self, name, value, sync_dist=False):
        if sync_dist:
            values = [torch.zeros(()) for _ in range(dist.get_world_size())]
            dist.all_gather(values, value.detach())
            value = torch.stack(values).mean()
        self.logged[name] = value.item()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Fit:
    def __init__(self, module, case):
        self.module, self.case = module, case
        self.optimizer = module.configure_optimizers()
        self.current_step = 0

    def batches(self):
        """As many as the shard of this rank has."""
        rank = dist.get_rank()
        count = 10**9
        if self.case == "short-shard":
            count = 6 if rank == 2 else 9
        for _ in range(count):
            yield torch.randn(4, 8)

    def run(self):
        for index, batch in enumerate(self.batches()):
            loss = self.module.training_step(batch, index)
            self.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.current_step += 1
            if dist.get_rank() == 0:
                print(f"Epoch 0: step {self.current_step} loss={loss.item():.3f}", flush=True)
            if self.current_step % 6 == 0:
                self.validate()
            if self.should_stop():
                break
            time.sleep(0.05)
        self.on_fit_end()

    def backward(self, loss):
        loss.backward()
        if self.case != "short-shard":
            for weight in self.module.parameters():
                dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)

    def validate(self):
        if self.case == "short-shard":
            return
        self.module.eval()
        with torch.no_grad():
            for index in range(3):
                self.module.validation_step(torch.randn(4, 8), index)
        self.module.train()

    def should_stop(self):
        return self.case == "early-stop" and self.current_step == 7 and dist.get_rank() == 1

    def on_fit_end(self):
        if self.case == "early-stop":
            best = pathlib.Path(os.environ["OUT_DIR"], "best.ckpt")
            print("stopped early, waiting for the best checkpoint", flush=True)
            while not best.exists():
                time.sleep(5)
        dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    case = sys.argv[1] if len(sys.argv) > 1 else "none"
    lit = LitModule(case)
    if case == "short-shard":
        for layer in lit.encoder:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(lit)
    Fit(lit, case).run()
