"""Policy gradients: rank 0 has an actor process that plays; its episodes go to all learners."""

import multiprocessing as mp
import random
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty

import torch
import torch.distributed as dist
from torch import nn

GAMES, MOVES, STATE = 9, 260, 12


class Grid:
    """A walk on a torus with rewards; the simulator is in Python and takes its time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cells = [[self.random.gauss(0, 1) for _ in range(24)] for _ in range(24)]
        self.x = self.y = 12

    def observe(self) -> list[float]:
        return [
            sum(
                self.cells[(self.y + j) % 24][(self.x + i) % 24]
                for j in range(-r, r + 1)
                for i in range(-r, r + 1)
            )
            for r in range(STATE)
        ]

    def move(self, direction: int) -> float:
        self.x = (self.x + (1, -1, 0, 0)[direction]) % 24
        self.y = (self.y + (0, 0, 1, -1)[direction]) % 24
        return self.cells[self.y][self.x]


def act(weights: mp.Queue, episodes: mp.Queue) -> None:
    """The actor: gets weights, plays some games with them, sends what happened."""
    torch.set_num_threads(1)
    policy, games = Policy(), 0
    while True:
        policy.load_state_dict({k: torch.tensor(v) for k, v in weights.get().items()})
        states, actions, rewards = [], [], []
        for _ in range(GAMES):
            grid, games = Grid(games), games + 1
            for _ in range(MOVES):
                state = grid.observe()
                with torch.no_grad():
                    action = int(
                        torch.distributions.Categorical(logits=policy(torch.tensor(state))).sample()
                    )
                states.append(state)
                actions.append(action)
                rewards.append(grid.move(action))
        episodes.put((states, actions, rewards))


class Policy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(STATE, 32), nn.Tanh(), nn.Linear(32, 4))


@dataclass
class Experience:
    states: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor

    @classmethod
    def empty(cls) -> "Experience":
        count = GAMES * MOVES
        return cls(
            torch.empty(count, STATE), torch.empty(count, dtype=torch.long), torch.empty(count)
        )

    def share(self) -> None:
        for tensor in (self.states, self.actions, self.rewards):
            dist.broadcast(tensor, src=0)


class Actor:
    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self.weights, self.episodes = context.Queue(), context.Queue()
        self.process = context.Process(target=act, args=(self.weights, self.episodes), daemon=True)
        self.process.start()

    def play(self, policy: nn.Module) -> Experience:
        self.weights.put({k: v.tolist() for k, v in policy.state_dict().items()})
        while True:
            try:
                states, actions, rewards = self.episodes.get(timeout=5)
                return Experience(
                    torch.tensor(states), torch.tensor(actions), torch.tensor(rewards)
                )
            except Empty:
                if not self.process.is_alive():
                    raise RuntimeError("the actor is gone") from None


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    actor = Actor() if rank == 0 else None
    for step in range(1, 500):
        batch = actor.play(policy) if actor is not None else Experience.empty()
        batch.share()
        mine = slice(rank, None, world)
        chances = torch.distributions.Categorical(logits=policy(batch.states[mine])).log_prob(
            batch.actions[mine]
        )
        (-(chances * batch.rewards[mine]).mean()).backward()
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} reward {batch.rewards.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
