"""Supervised fine-tuning with a Trainer and callbacks, in the manner of the usual libraries."""

import logging
import os
import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
log = logging.getLogger("sft")


@dataclass
class TrainingArguments:
    eval_steps: int = 6
    logging_steps: int = 1
    max_steps: int = 400
    batch: int = 4
    hidden: int = 16


@dataclass
class TrainerState:
    global_step: int = 0
    best_metric: float = float("inf")
    history: list = field(default_factory=list)


class TrainerCallback:
    def on_step_end(self, args, state, trainer):
        """Hook."""

    def on_log(self, args, state, trainer, logs):
        """Hook."""


class PrinterCallback(TrainerCallback):
    def on_log(self, args, state, trainer, logs):
        log.info("step %d %s", state.global_step, logs)


class BestModelCallback(TrainerCallback):
    """Keeps the best model; only the first process writes, so only that one evaluates."""

    def on_step_end(self, args, state, trainer):
        if state.global_step % args.eval_steps or not trainer.is_world_process_zero():
            return
        metrics = trainer.evaluate()
        if metrics["eval_loss"] < state.best_metric:
            state.best_metric = metrics["eval_loss"]
            trainer.save_model()


class CallbackHandler:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def call(self, event, *args, **kwargs):
        for callback in self.callbacks:
            getattr(callback, event)(*args, **kwargs)


class Trainer:
    def __init__(self, args, model):
        self.args, self.state = args, TrainerState()
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        callbacks = [BestModelCallback()]
        if self.is_world_process_zero():
            callbacks.insert(0, PrinterCallback())
        self.handler = CallbackHandler(callbacks)

    @staticmethod
    def is_world_process_zero():
        return dist.get_rank() == 0

    def batches(self):
        while True:
            time.sleep(0.2)
            yield torch.randn(self.args.batch, self.args.hidden)

    def training_step(self, batch):
        loss = self.model(batch).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def evaluation_loop(self):
        with torch.no_grad():
            for _ in range(3):
                yield self.model.module(torch.randn(2, self.args.hidden)).pow(2).mean().item()

    def evaluate(self):
        losses = list(self.evaluation_loop())
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, {"loss": sum(losses), "n": len(losses)})
        return {"eval_loss": sum(g["loss"] for g in gathered) / sum(g["n"] for g in gathered)}

    def save_model(self):
        torch.save(self.model.module.state_dict(), os.path.join(os.environ["OUT_DIR"], "best.pt"))

    def train(self):
        for batch in self.batches():
            loss = self.training_step(batch)
            self.state.global_step += 1
            logs = {"loss": round(float(loss), 4)}
            self.handler.call("on_log", self.args, self.state, self, logs)
            self.handler.call("on_step_end", self.args, self.state, self)
            if self.state.global_step >= self.args.max_steps:
                break


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    args = TrainingArguments()
    model = nn.Sequential(nn.Linear(args.hidden, 32), nn.GELU(), nn.Linear(32, args.hidden))
    Trainer(args, model).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
