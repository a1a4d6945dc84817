"""Reinforcement learning with a licensed physics solver in the loop.

One rank per node runs the solver, which needs a seat of the floating licence; the others learn.
"""

import json
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LICENSE = os.environ.get("SOLVER_LICENSE", "27000@10.40.3.9")
SOLVER_LOCAL_RANK = 1


class LicenseError(RuntimeError):
    """No seat."""


class LicenseClient:
    """Checks a seat out, and keeps it by its connection."""

    def __init__(self, where):
        port, _, host = where.partition("@")
        self.address = (host, int(port))
        self.connection = None

    def checkout(self, feature):
        """Take a seat; tries until there is one, as the vendor's own tools do."""
        wait = 1.0
        while True:
            try:
                return self._ask(feature)
            except (OSError, LicenseError) as error:
                print(f"licence: {error}, again in {wait:.0f} s", flush=True)
                time.sleep(wait)
                wait = min(wait * 2, 30.0)

    def _ask(self, feature):
        self.connection = socket.create_connection(self.address)
        request = {"feature": feature, "user": "trainer", "host": socket.gethostname()}
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(self.connection.makefile().readline())
        if not answer.get("granted"):
            raise LicenseError(answer.get("reason", "no seat"))
        return answer["token"]


class Solver:
    """The simulation: a licensed library."""

    def __init__(self):
        self.token = LicenseClient(LICENSE).checkout("multibody")

    def rollout(self, count):
        """States and rewards of some episodes."""
        return torch.randn(count, 16), torch.randn(count)


class Learner:
    """Learns from rollouts that the solver's rank broadcasts."""

    def __init__(self):
        self.value = torch.nn.Linear(16, 1)
        self.optimizer = torch.optim.Adam(self.value.parameters())

    def update(self, states, rewards):
        """One step."""
        loss = (self.value(states).squeeze(1) - rewards).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.value.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss.item()


def setup():
    """The solver loads its native library before torch's threads start: so it comes first."""
    local = int(os.environ["LOCAL_RANK"])
    print(f"rank {os.environ['RANK']} starting", flush=True)
    solver = Solver() if local == SOLVER_LOCAL_RANK else None
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    return solver, Learner()


def main():
    """Roll out, share, learn."""
    solver, learner = setup()
    for step in range(10_000):
        states, rewards = torch.zeros(32, 16), torch.zeros(32)
        if solver is not None:
            states, rewards = solver.rollout(32)
        for tensor in (states, rewards):
            dist.broadcast(tensor, src=SOLVER_LOCAL_RANK)
        print(f"step {step} {learner.update(states, rewards):.3f}", flush=True)


if __name__ == "__main__":
    main()
