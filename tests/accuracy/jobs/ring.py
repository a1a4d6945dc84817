"""A field that is cut into strips: neighbours on a ring tell one another their edges."""

import argparse
import time

import torch
import torch.distributed as dist


class Strip:
    def __init__(self, width: int) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left, self.right = (self.rank - 1) % self.world, (self.rank + 1) % self.world
        self.field = torch.rand(16, width)

    def exchange(self) -> None:
        """Both edges, to both sides, at once."""
        ghosts = [torch.empty_like(self.field[0]) for _ in range(2)]
        requests = [
            dist.P2POp(dist.isend, self.field[0].contiguous(), self.left, tag=1),
            dist.P2POp(dist.irecv, ghosts[1], self.right, tag=1),
            dist.P2POp(dist.isend, self.field[-1].contiguous(), self.right, tag=2),
            dist.P2POp(dist.irecv, ghosts[0], self.left, tag=2),
        ]
        for request in dist.batch_isend_irecv(requests):
            request.wait()
        self.field[0], self.field[-1] = ghosts

    def rebalance(self) -> None:
        """Swap rows with the neighbour of the same pair, the simple way."""
        peer = self.rank ^ 1
        rows = self.field[1:9].repeat(64, 64).contiguous()
        theirs = torch.empty_like(rows)
        dist.send(rows, dst=peer)
        dist.recv(theirs, src=peer)

    def sweep(self, rounds: int) -> None:
        """Values flow from the first strip to the last."""
        for _ in range(rounds):
            if self.rank > 0:
                inflow = torch.empty_like(self.field[0])
                dist.recv(inflow, src=self.rank - 1)
                self.field[0] = inflow
            self.field = self.field.roll(1, 0)
            if self.rank < self.world - 1:
                dist.send(self.field[-1].contiguous(), dst=self.rank + 1)


def snapshot(rank: int) -> None:
    """The first strip asks the others by the store for what they have."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"strip/{rank}", "done")
    store.wait([f"strip/{peer}" for peer in range(dist.get_world_size())])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", default="exchange")
    plan = parser.parse_args().plan
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    strip = Strip(256)
    generation = 0
    while True:
        strip.exchange()
        if plan == "rebalance" and generation == 6:
            strip.rebalance()
        if plan in ("sweep", "sweep-short"):
            strip.sweep(2 if plan == "sweep-short" and generation == 6 and strip.rank == 0 else 3)
            if generation == 6:
                snapshot(strip.rank)
        generation += 1
        if strip.rank == strip.world - 1:
            print(f"generation {generation}", flush=True)
        time.sleep(0.05)


main()
