"""Two containers of two ranks each on one node; a node agent pauses one to take an image of it."""

import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

PER_CONTAINER = 2


class Container:
    """A cgroup that can be paused, by its control file: v1 or v2."""

    def __init__(self, control: Path) -> None:
        self.control = control

    def enter(self) -> None:
        (self.control.parent / "cgroup.procs").write_text(str(os.getpid()))

    def pause(self) -> None:
        word = "FROZEN" if self.control.name == "freezer.state" else "1"
        self.control.write_text(word)


def node_agent(control: Path, folder: Path) -> None:
    """Pause the container when asked to; what would take the image never answers."""
    request = folder / "image-wanted"
    while not request.exists():
        time.sleep(0.2)
    print("agent: pausing container B for its image", flush=True)
    Container(control).pause()
    while not (folder / "image-done").exists():
        time.sleep(5.0)


class MixtureBlock(nn.Module):
    """Two experts per rank; tokens travel to theirs and back."""

    def __init__(self, world: int) -> None:
        super().__init__()
        self.world = world
        self.gate = nn.Linear(16, world)
        self.expert = nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weight = self.gate(tokens).softmax(-1).mean()
        sent = tokens.chunk(self.world)
        got = [torch.empty_like(part) for part in sent]
        dist.all_to_all(got, list(sent)) if dist.get_backend() != "gloo" else self.exchange(
            got, list(sent)
        )
        return self.expert(torch.cat(got)) * weight

    def exchange(self, got: list[torch.Tensor], sent: list[torch.Tensor]) -> None:
        me = dist.get_rank()
        for rank in range(self.world):
            dist.scatter(got[rank], sent if rank == me else None, src=rank)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    control, folder = Path(os.environ["PLACE"]), Path(os.environ["OUT_DIR"])
    if rank == 0:
        context = multiprocessing.get_context("spawn")
        context.Process(target=node_agent, args=(control, folder), daemon=True).start()
    if rank // PER_CONTAINER == 1:
        Container(control).enter()
    block = MixtureBlock(world)
    optimizer = torch.optim.Adam(block.parameters())
    for step in range(100_000):
        loss = block(torch.randn(8 * world, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in block.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == 12:
                (folder / "image-wanted").touch()
        time.sleep(0.25)


if __name__ == "__main__":
    main()
