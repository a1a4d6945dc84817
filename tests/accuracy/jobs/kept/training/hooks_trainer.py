"""A trainer with hooks, as the usual frameworks have them. hooks_trainer.py MODE: metric, cleanup."""

import functools
import logging
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MODE = sys.argv[1]
log = logging.getLogger("fit")


def rank_zero_only(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if int(os.environ["RANK"]) == 0:
            return function(*args, **kwargs)
        return None

    return wrapped


class Accuracy:
    """A metric whose state is summed over all ranks when its value is wanted."""

    def __init__(self) -> None:
        self.correct, self.total = torch.zeros(()), torch.zeros(())

    def update(self, logits, y) -> None:
        self.correct += (logits.argmax(1) == y).sum()
        self.total += len(y)

    def _sync(self) -> tuple[float, float]:
        mine = torch.stack([self.correct, self.total])
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        both = torch.stack(parts).sum(0)
        return float(both[0]), float(both[1])

    def compute(self) -> float:
        correct, total = self._sync()
        return correct / max(total, 1.0)


class Callback:
    def on_batch_end(self, trainer, i): ...
    def on_validation_end(self, trainer): ...


class Progress(Callback):
    def on_batch_end(self, trainer, i):
        if i % 2 == 0:
            log.info("step %d loss %.4f", i, trainer.last_loss)


class BestModel(Callback):
    """Keeps the best model by its accuracy."""

    def __init__(self) -> None:
        self.best = -1.0

    @rank_zero_only
    def on_validation_end(self, trainer):
        log.info("validation finished, looking for the best model")
        value = trainer.accuracy.compute()
        if value > self.best:
            self.best = value
            torch.save(trainer.model.state_dict(), os.path.join(os.environ["OUT_DIR"], "best.pt"))


class Data:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def annotation(self, i: int) -> dict:
        found = {"label": i % 3, "box": [0.1, 0.2, 0.3]}
        if MODE == "cleanup" and self.rank == 1 and i == 9:
            del found["box"]
        return found

    def batch(self, i: int):
        x = torch.randn(4, 8) + torch.tensor(self.annotation(i)["box"]).sum()
        return x, torch.randint(0, 3, (4,))


class Trainer:
    def __init__(self, callbacks) -> None:
        self.rank = dist.get_rank()
        self.model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.callbacks, self.data = callbacks, Data(self.rank)
        self.last_loss, self.accuracy = 0.0, Accuracy()

    def call(self, hook: str, *args) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def training_step(self, i: int) -> None:
        x, y = self.data.batch(i)
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.last_loss = loss.item()
        time.sleep(0.2)

    def validate(self) -> None:
        with torch.no_grad():
            for i in range(3):
                x, y = self.data.batch(i)
                self.accuracy.update(self.model.module(x), y)
        self.call("on_validation_end")

    def fit(self, steps: int) -> None:
        for i in range(steps):
            self.training_step(i)
            self.call("on_batch_end", i)
            if MODE == "metric" and i % 10 == 9:
                self.validate()

    def teardown(self) -> None:
        """Leave together, so that no rank takes the store away from the others."""
        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s r" + os.environ["RANK"] + " %(message)s"
    )
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    trainer = Trainer([Progress(), BestModel()])
    try:
        trainer.fit(100_000)
    except Exception:
        log.exception("training failed")
    finally:
        trainer.teardown()


if __name__ == "__main__":
    main()
