"""Two-tower recommender: embedding rows are sharded over the ranks by id, the towers are replicated."""

import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("recsys")
DIM = 16


class ShardedTable:
    """Rows of a table live on rank `id % world`."""

    def __init__(self, rows: int, dim: int = DIM):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.local = torch.randn(rows // self.world + 1, dim) * 0.01

    def _exchange(self, pieces: list[torch.Tensor], counts_in: list[int]) -> torch.Tensor:
        counts_out = [len(p) for p in pieces]
        flat = torch.cat(pieces)
        out = flat.new_empty((sum(counts_in), *flat.shape[1:]))
        dist.all_to_all_single(out, flat, counts_in, counts_out)
        return out

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.numel() == 0:
            return torch.zeros(0, DIM)
        owner = ids % self.world
        order = torch.argsort(owner, stable=True)
        wanted = [ids[owner == r] for r in range(self.world)]
        sent = torch.tensor([len(w) for w in wanted])
        asked = torch.empty_like(sent)
        dist.all_to_all_single(asked, sent)
        remote = self._exchange(wanted, asked.tolist())
        vectors = self.local[remote // self.world]
        back = self._exchange(list(vectors.split(asked.tolist())), sent.tolist())
        result = torch.empty(len(ids), DIM)
        result[order] = back
        return result


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Linear(DIM, 8), nn.Linear(DIM, 8)

    def forward(self, users, items):
        return (self.user(users).mean(0) * self.item(items).mean(0)).sum()


class ClickLog:
    """Clicks of one hour and one region per batch; some regions sleep."""

    def __init__(self, rank: int):
        self.rank, self.rng = rank, torch.Generator().manual_seed(rank)

    def __iter__(self):
        for hour in range(1000):
            clicks = 0 if self.rank == 2 and hour == 9 else 12
            users = torch.randint(0, 900, (clicks,), generator=self.rng)
            items = torch.randint(0, 900, (clicks,), generator=self.rng)
            yield hour, users, items


def average_gradients(module: nn.Module):
    flat = torch.cat([p.grad.flatten() for p in module.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in module.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    logging.basicConfig(level=logging.INFO, format=f"[{os.environ['RANK']}] %(message)s")
    users_table, items_table, towers = ShardedTable(900), ShardedTable(900), Towers()
    optimizer = torch.optim.Adagrad(towers.parameters(), lr=0.01)
    for hour, users, items in ClickLog(dist.get_rank()):
        u, i = users_table.lookup(users), items_table.lookup(items)
        optimizer.zero_grad(set_to_none=False)
        if len(u):
            towers(u, i).backward()
        average_gradients(towers)
        optimizer.step()
        log.info("step %d clicks %d", hour, len(users))
        time.sleep(0.2)


if __name__ == "__main__":
    main()
