"""Learns a board game: rank 0 plays against itself for most of a minute, then all learn from the games."""

import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

COLUMNS, ROWS = 7, 6


class Board:
    """Four in a row."""

    def __init__(self):
        self.cells = [[0] * ROWS for _ in range(COLUMNS)]
        self.heights = [0] * COLUMNS
        self.player, self.moves = 1, []

    def legal(self):
        return [c for c in range(COLUMNS) if self.heights[c] < ROWS]

    def play(self, column):
        row = self.heights[column]
        self.cells[column][row] = self.player
        self.heights[column] += 1
        self.moves.append(column)
        won = self._wins(column, row)
        self.player = -self.player
        return won

    def _wins(self, column, row):
        for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
            run = 1
            for sign in (1, -1):
                x, y = column + sign * dx, row + sign * dy
                while 0 <= x < COLUMNS and 0 <= y < ROWS and self.cells[x][y] == self.player:
                    run += 1
                    x, y = x + sign * dx, y + sign * dy
            if run >= 4:
                return True
        return False

    def copy(self):
        other = Board()
        other.cells = [c[:] for c in self.cells]
        other.heights, other.player = self.heights[:], self.player
        return other


def playout(board):
    """Random moves to the end: 1 if the player to move wins, -1 if not, 0 for a draw."""
    me = board.player
    while columns := board.legal():
        mover = board.player
        if board.play(random.choice(columns)):
            return 1 if mover == me else -1
    return 0


def choose(board, tries=40):
    """The column whose random continuations are worst for the other one."""
    worth = {}
    for column in board.legal():
        after = board.copy()
        worth[column] = (
            99 if after.play(column) else -sum(playout(after.copy()) for _ in range(tries))
        )
    return max(worth, key=worth.get)


def self_play(budget_s):
    positions, until = [], time.monotonic() + budget_s
    while time.monotonic() < until:
        board, won = Board(), False
        while not won and board.legal() and time.monotonic() < until:
            won = board.play(choose(board))
            positions.append(torch.tensor(board.cells, dtype=torch.float32).flatten())
    return torch.stack(positions)[-64:]


class Learner:
    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(42, 64), torch.nn.ReLU(), torch.nn.Linear(64, 42)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def learn(self, positions):
        for part in positions[dist.get_rank() :: dist.get_world_size()].split(4):
            loss = torch.nn.functional.mse_loss(self.net(part), part)
            self.optimizer.zero_grad()
            loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad)
        self.optimizer.step()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    learner = Learner()
    for iteration in range(1000):
        games = [self_play(55.0 if iteration else 4.0) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(games, 0)
        learner.learn(games[0])
        if dist.get_rank() == 0:
            print(f"iteration {iteration}: {len(games[0])} positions", flush=True)


if __name__ == "__main__":
    main()
