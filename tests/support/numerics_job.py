"""One process with small models that go wrong in known ways, each watched by a hook of its own.

`numerics_job.py FOLDER`: every case writes into FOLDER/CASE/numerics. What cases compute is
compared with the same without the hook, to the bit.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import hangtop_hook
from hangtop_hook import numerics
from hangtop_hook.numericsfile import VARIABLE, Settings, to_text

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD = 2
"""The batch in which it goes wrong; the first is 0."""


class Block(nn.Module):
    """Two layers with an activation in place; ``factor`` multiplies what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(16, 8)
        self.factor = 1.0
        self.told = False
        """Whether it shows a value of its own."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.down(self.act(self.up(x))) * self.factor
        if self.told:
            hangtop_hook.detect_overflow(out * self.factor, "out times factor")
        out = out * self.factor
        return out if mask is None else out * torch.softmax(mask, 0)


class Net(nn.Module):
    """Blocks in a row, the second given a mask by name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(8, 4)
        self.again = False
        """Whether blocks are computed once more on the way back."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(8)
        mask[0] = -torch.inf
        for place, block in enumerate(self.blocks):
            if self.again:
                x = checkpoint(block, x, use_reentrant=False) + x
            else:
                x = (block(x, mask=mask) if place == 1 else block(x)) + x
        out: Tensor = self.head(x)
        return out


def train(change: Any = None, scaler: Any = None, batches: int = 5, model: Any = None) -> list[Any]:
    """Train for some batches; returns losses and the last weights."""
    torch.manual_seed(0)
    net = Net()
    called = model(net) if model is not None else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses: list[Any] = []
    for batch in range(batches):
        x = torch.randn(3, 8)
        if change is not None:
            x = change(net, x, batch)
        loss = nn.functional.cross_entropy(called(x), torch.tensor([0, 1, 2]))
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss * 64).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.detach())
    return [*losses, *(local(weight).detach() for weight in net.parameters())]


def local(tensor: Any) -> Any:
    """The part of a spread tensor that is here; another one is that itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def hot(net: Net, x: Tensor, batch: int) -> Tensor:
    net.blocks[1].factor = 1e30 if batch == BAD else 1.0
    return x


def shown(net: Net, x: Tensor, batch: int) -> Tensor:
    net.blocks[1].told = True
    return hot(net, x, batch)


def poisoned(net: Net, x: Tensor, batch: int) -> Tensor:
    if batch == BAD:
        local(net.blocks[2].down.weight.detach())[0, 0] = torch.nan
    return x


def dirty(net: Net, x: Tensor, batch: int) -> Tensor:
    return x / 0 if batch == BAD else x


def recomputed(net: Net, x: Tensor, batch: int) -> Tensor:
    net.again = True
    return hot(net, x, batch)


def steep(net: Net, x: Tensor, batch: int) -> Tensor:
    """Finite all the way there, and too much on the way back."""
    if batch == BAD:
        net.head.register_forward_hook(lambda *_: _[2] * 1 + (_[2] * 1e-38).exp() * 0)
        net.blocks[0].up.weight.register_hook(lambda gradient: gradient * torch.inf)
    return x


def failing(net: Net, x: Tensor, batch: int) -> Tensor:
    """A call that raises and is caught must not shift what belongs to whom."""
    try:
        net(torch.randn(3, 5))
    except RuntimeError:
        return hot(net, x, batch + 1)
    raise AssertionError("it should have failed")


def cases() -> Iterator[tuple[str, Any, Settings]]:
    """Names, what is done, and how it is watched."""
    yield "fine", lambda: train(), Settings()
    yield "activation", lambda: train(hot), Settings(frames=4)
    yield "inside", lambda: train(shown), Settings()
    yield "weight", lambda: train(poisoned), Settings()
    yield "input", lambda: train(dirty), Settings()
    yield "gradient", lambda: train(steep), Settings()
    yield "recomputed", lambda: train(recomputed), Settings()
    yield "failing", lambda: train(failing), Settings()
    yield "traced", lambda: train(), Settings(trace=((1, 1), (3, 4)))
    yield (
        "scaled",
        lambda: train(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**127)),
        Settings(),
    )
    yield "compiled", lambda: train(hot, model=compiled), Settings()
    yield "compiled weight", lambda: train(poisoned, model=compiled), Settings()
    yield "spread", lambda: train(poisoned, model=spread), Settings()
    yield "abort", lambda: train(hot), Settings(stop=True)
    yield "after", lambda: train(), Settings(abort_after=1)


def compiled(net: Net) -> Any:
    """The backend is of no matter to hooks, and inductor takes a minute."""
    for block in net.blocks:
        block.told = True
    return torch.compile(net, backend="aot_eager")


def spread(net: Net) -> Any:
    """FSDP over one rank: its weights are whole again only within a pass."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def watched(folder: Path, name: str, action: Any, settings: Settings) -> list[Any]:
    """Do it with the hook; what it raised is printed."""
    (folder / name / "numerics").mkdir(parents=True)
    watcher = numerics.register(torch.nn.modules.module, str(folder / name), settings)
    try:
        result: list[Any] = action()
    except FloatingPointError as error:
        say(f"{name}: {error}")
        return []
    finally:
        watcher.stop()
    return result


def say(text: str) -> None:
    """One line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run all cases."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    os.environ[VARIABLE] = to_text(Settings())
    for name, action, settings in cases():
        plain = action()
        result = watched(folder, name, action, settings)
        pairs = zip(plain, result, strict=False)
        same = all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in pairs)
        say(f"{name}: {'same' if same else 'CHANGED'} {len(result)}")


if __name__ == "__main__":
    main()
    os._exit(0)
