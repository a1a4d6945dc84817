"""A trainer made of actors: each has a mailbox and a thread, and answers with futures."""

import os
import queue
import threading
import time
from concurrent.futures import Future
from datetime import timedelta

import torch
import torch.distributed as dist


class Actor:
    def __init__(self, name):
        self.mailbox = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def ask(self, method, *args):
        answer = Future()
        self.mailbox.put((method, args, answer))
        return answer

    def _loop(self):
        while True:
            method, args, answer = self.mailbox.get()
            try:
                answer.set_result(getattr(self, method)(*args))
            except Exception as error:
                answer.set_exception(error)


class Weights:
    """Parameters with a version; whoever wants both takes the lock."""

    def __init__(self, model):
        self.lock = threading.Lock()
        self.model, self.version = model, 0


class Ledger:
    """What was published when."""

    def __init__(self, path):
        self.lock = threading.Lock()
        self.path, self.rows = path, []

    def append(self, row):
        self.rows.append(row)
        with open(self.path, "a") as f:
            f.write(f"{row}\n")
            f.flush()
            os.fsync(f.fileno())
        time.sleep(0.2)  # it lies on a share


class Learner(Actor):
    """Does the optimiser steps."""

    def __init__(self, weights, ledger):
        self.weights, self.ledger = weights, ledger
        self.opt = torch.optim.SGD(weights.model.parameters(), lr=0.05)
        super().__init__("learner")

    def step(self, number):
        x = torch.randn(16, 12)
        loss = (self.weights.model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in self.weights.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        with self.weights.lock:
            self.opt.step()
            self.weights.version += 1
            if number % 4 == 0:
                with self.ledger.lock:
                    self.ledger.append(("step", number, round(loss.item(), 4)))
        time.sleep(0.15)
        return loss.item()


class Publisher(Actor):
    """Copies the weights out for the samplers."""

    def __init__(self, weights, ledger):
        self.weights, self.ledger = weights, ledger
        super().__init__("publisher")

    def publish(self):
        with self.ledger.lock:
            self.ledger.append(("publish", time.time()))
            with self.weights.lock:
                state = {k: v.clone() for k, v in self.weights.model.state_dict().items()}
        return len(state)


class Supervisor:
    """Main thread of a rank: hands out work, waits for the answers."""

    def __init__(self, rank):
        self.rank = rank
        model = torch.nn.Linear(12, 1)
        self.weights = Weights(model)
        ledger = Ledger(os.path.join(os.environ["OUT_DIR"], f"ledger{rank}.txt"))
        self.learner = Learner(self.weights, ledger)
        # samplers are served by one rank
        self.publisher = Publisher(self.weights, ledger) if rank == 1 else None

    def run(self, steps):
        for number in range(1, steps):
            if self.publisher and number == 8:
                self.publisher.ask("publish")
            loss = self.learner.ask("step", number).result()
            if self.rank == 0:
                print(f"step {number} loss {loss:.4f}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Supervisor(dist.get_rank()).run(3000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
