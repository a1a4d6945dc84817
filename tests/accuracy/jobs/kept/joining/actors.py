"""Reinforcement learning over RPC: a learner on rank 0, actors on the others."""

import os
import random
import time

import torch
import torch.distributed.rpc as rpc
from torch import nn

POLICY = None


class Policy(nn.Module):
    def __init__(self, seen: int = 8, actions: int = 4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(seen, 32), nn.Tanh(), nn.Linear(32, actions))

    def forward(self, seen):
        return torch.softmax(self.net(seen), dim=-1)


def current_weights():
    """Called by actors, runs in the learner."""
    return {name: value.clone() for name, value in POLICY.state_dict().items()}


def play(episodes: int):
    """Called by the learner, runs in an actor: rewards of some episodes."""
    policy = Policy()
    policy.load_state_dict(rpc.rpc_sync("learner", current_weights))
    rewards = []
    for _ in range(episodes):
        with torch.no_grad():
            chances = policy(torch.randn(8))
        rewards.append(float(chances.max()) + random.random())
        time.sleep(0.05)
    return rewards


def options() -> rpc.TensorPipeRpcBackendOptions:
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8,
        rpc_timeout=2400,
        init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    )


def name_of(rank: int) -> str:
    return "learner" if rank == 0 else f"actor{rank}"


def learn(world: int) -> None:
    optimizer = torch.optim.Adam(POLICY.parameters(), lr=1e-3)
    for iteration in range(100_000):
        asked = [rpc.rpc_async(name_of(actor), play, args=(4,)) for actor in range(1, world)]
        rewards = [reward for answer in asked for reward in answer.wait()]
        loss = -POLICY(torch.randn(len(rewards), 8)).log().mean() * sum(rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"iteration {iteration}: mean reward {sum(rewards) / len(rewards):.3f}", flush=True)


def main() -> None:
    global POLICY
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    POLICY = Policy()
    # TensorPipe has a variable of its own for this.
    os.environ.setdefault("TP_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "eth0"))
    print(f"{name_of(rank)} joins {world - 1} others", flush=True)
    rpc.init_rpc(name_of(rank), rank=rank, world_size=world, rpc_backend_options=options())
    print(f"{name_of(rank)} is ready", flush=True)
    if rank == 0:
        learn(world)
    rpc.shutdown()


if __name__ == "__main__":
    main()
