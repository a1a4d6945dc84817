"""Pre-training with torch.distributed.checkpoint; an error in saving is logged, not raised."""

import logging
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

log = logging.getLogger("pretrain")


class TokenStream:
    """Endless packed batches, with a position that is saved."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world, self.position = rank, world, 0
        self.pending: dict[int, int] = {}

    def __iter__(self):
        while True:
            time.sleep(0.2)
            self.position += 1
            if self.rank == 1 and self.position > 5:
                self.pending[self.position] = self.position  # shuffle buffer spilled
            yield torch.randint(0, 32, (2, 8))

    def state_dict(self) -> dict:
        if self.pending:
            raise RuntimeError(f"cannot save the stream: {len(self.pending)} samples are pending")
        return {"position": torch.tensor(self.position)}


class Checkpointer:
    def __init__(self, root: Path, every: int) -> None:
        self.root, self.every = root, every

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def save(self, step: int, **parts) -> None:
        state = {name: part.state_dict() for name, part in parts.items()}
        dcp.save(state, checkpoint_id=str(self.root / f"step-{step}"))
        if dist.get_rank() == 0:
            log.info("saved step-%d", step)


def allreduce_gradients(model: nn.Module) -> None:
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


class Pretrainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.stream = TokenStream(dist.get_rank(), dist.get_world_size())
        self.checkpointer = Checkpointer(Path(os.environ["OUT_DIR"]) / "ckpt", every=6)

    def train_step(self, tokens: torch.Tensor) -> float:
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        allreduce_gradients(self.model)
        self.optimizer.step()
        return loss.item()

    def maybe_save(self, step: int) -> None:
        if not self.checkpointer.due(step):
            return
        try:
            self.checkpointer.save(step, model=self.model, stream=self.stream)
        except Exception:
            # A failed checkpoint must not end a run of three weeks.
            log.warning("step %d: checkpoint failed, going on", step, exc_info=True)

    def run(self) -> None:
        for step, tokens in enumerate(self.stream, 1):
            loss = self.train_step(tokens)
            if dist.get_rank() == 0:
                log.info("step %d loss %.3f", step, loss)
            self.maybe_save(step)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(1)
    Pretrainer().run()
