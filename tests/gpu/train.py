"""Data-parallel training over NCCL, several ranks on one GPU, that goes wrong in a way it is told.

NCCL refuses two ranks on one GPU of a host; so each says that it is on a host of its own, and they
talk over sockets, as nodes without InfiniBand do.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host-{RANK}"
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

WIDTH = 2048
HANG_STEP = 8
TROUBLED = 2


class Net(nn.Module):
    """A few layers that are worth a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Mean square of what comes out."""
        return self.layers(batch).square().mean()


class Trainer:
    """One rank."""

    def __init__(self, trouble: str) -> None:
        self.trouble, self.step = trouble, 0
        self.me, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Net().cuda())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        every = range(self.size)
        self.halves = [dist.new_group(list(every)[n::2]) for n in range(min(2, self.size))]
        self.pairs = [dist.new_group(list(every)[n : n + 2]) for n in every[::2]]

    @property
    def troubled(self) -> bool:
        """Whether this rank and step are those that go wrong."""
        return self.step == HANG_STEP and self.me == TROUBLED

    def train(self) -> None:
        """Take steps until something stops them."""
        while True:
            loss = self.train_step(torch.randn(256, WIDTH, device="cuda"))
            if self.step % 5 == 0:
                self.log_metrics(loss)
            self.step += 1

    def train_step(self, batch: torch.Tensor) -> torch.Tensor:
        """Forward, backward, the optimizer, and what the trouble is."""
        self.optimizer.zero_grad()
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        if self.step == HANG_STEP:
            self.announce()
        getattr(self, self.trouble.replace("-", "_"))(loss)
        return loss

    def announce(self) -> None:
        """Let whoever records know."""
        torch.cuda.synchronize()
        if self.me == 0:
            print("now it hangs", flush=True)

    def log_metrics(self, loss: torch.Tensor) -> None:
        """Mean loss over all ranks, on rank 0."""
        value = loss.detach().clone()
        dist.all_reduce(value)
        if self.me == 0:
            print(f"step {self.step} loss {value.item() / self.size:.4f}", flush=True)

    # Troubles

    def healthy(self, loss: torch.Tensor) -> None:
        """None."""

    def skip(self, loss: torch.Tensor) -> None:
        """One rank writes a file instead of reducing a norm."""
        if self.troubled:
            time.sleep(3600)
            return
        norm = loss.detach().clone()
        dist.all_reduce(norm)
        norm.item()

    def kernel(self, loss: torch.Tensor) -> None:
        """A kernel of one rank does not end, and then all reduce."""
        if self.troubled:
            work = torch.randn(8192, 8192, device="cuda")
            for _ in range(40_000):
                work = work @ work
                work /= work.norm()
        norm = loss.detach().clone()
        dist.all_reduce(norm)
        norm.item()

    def sleepkernel(self, loss: torch.Tensor) -> None:
        """The same by a kernel that does nothing but go round."""
        if self.troubled:
            torch.cuda._sleep(1 << 42)
        norm = loss.detach().clone()
        dist.all_reduce(norm)
        norm.item()

    def lonekernel(self, loss: torch.Tensor) -> None:
        """The only rank waits for a kernel that does not end."""
        if self.step == HANG_STEP:
            torch.cuda._sleep(1 << 42)
            torch.cuda.synchronize()

    def verb(self, loss: torch.Tensor) -> None:
        """One rank gathers where the others reduce."""
        norm = torch.ones(1 << 22, device="cuda")
        if self.troubled:
            parts = [torch.empty_like(norm) for _ in range(self.size)]
            dist.all_gather(parts, norm)
        else:
            dist.all_reduce(norm)
        torch.cuda.synchronize()

    def sizes(self, loss: torch.Tensor) -> None:
        """One rank reduces another number of elements."""
        count = 1 << (24 if self.troubled else 10)
        dist.all_reduce(torch.ones(count, device="cuda"))
        torch.cuda.synchronize()

    def order(self, loss: torch.Tensor) -> None:
        """Ranks 0 and 3 use the groups in the other order."""
        half, pair = self.halves[self.me % 2], self.pairs[self.me // 2]
        crossed = self.step == HANG_STEP and self.me in (0, 3)
        for group in (pair, half) if crossed else (half, pair):
            dist.all_reduce(torch.ones(1024, device="cuda"), group=group)
            torch.cuda.synchronize()

    def group(self, loss: torch.Tensor) -> None:
        """A new group of which one member never uses it: NCCL is set up at the first use."""
        if self.step != HANG_STEP:
            return
        experts = dist.new_group(list(range(self.size)))
        if self.troubled:
            time.sleep(3600)
        dist.all_reduce(torch.ones(8, device="cuda"), group=experts)
        torch.cuda.synchronize()

    def recv(self, loss: torch.Tensor) -> None:
        """Two ranks each receive from the other before they send."""
        if self.step == HANG_STEP and self.me < 2:
            dist.recv(torch.empty(1024, device="cuda"), 1 - self.me)
            torch.cuda.synchronize()
            dist.send(torch.ones(1024, device="cuda"), 1 - self.me)

    def leave(self, loss: torch.Tensor) -> None:
        """One rank is gone, without a word."""
        if self.troubled:
            os._exit(0)

    def stop(self, loss: torch.Tensor) -> None:
        """One rank stops itself."""
        if self.troubled:
            os.kill(os.getpid(), 19)

    def free(self, loss: torch.Tensor) -> None:
        """A rank frees memory: that waits for a kernel, that for a rank, and that for the first."""
        if self.step != HANG_STEP:
            return
        norm = torch.ones(1 << 20, device="cuda")
        if self.troubled:
            store = dist.distributed_c10d._get_default_store()
            store.wait(["memory freed"], timedelta(hours=1))
        dist.all_reduce(norm)
        torch.cuda.empty_cache()
        if self.me == 0:
            dist.distributed_c10d._get_default_store().set("memory freed", "1")

    def lonely(self, loss: torch.Tensor) -> None:
        """Only rank 0 reduces, as in a checkpoint that only rank 0 writes."""
        if self.step == HANG_STEP and self.me == 0:
            dist.all_reduce(loss.detach().clone())
            torch.cuda.synchronize()

    def barrier(self, loss: torch.Tensor) -> None:
        """All but one meet in a barrier."""
        if self.troubled:
            time.sleep(3600)
        if self.step == HANG_STEP:
            dist.barrier()


def main() -> None:
    """Join and train."""
    trouble, *rest = sys.argv[1:]
    if trouble == "absent" and RANK == TROUBLED:
        print("now it hangs", flush=True)
        time.sleep(3600)
    torch.cuda.set_device(0)
    timeout = timedelta(seconds=float(rest[0]) if rest else 600)
    dist.init_process_group("nccl", timeout=timeout, device_id=torch.device("cuda:0"))
    Trainer("healthy" if trouble == "absent" else trouble).train()


if __name__ == "__main__":
    main()
