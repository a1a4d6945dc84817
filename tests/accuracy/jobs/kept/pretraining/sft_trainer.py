"""Supervised fine-tuning with a small Trainer: callbacks, gradient accumulation, clean shutdown."""

import datetime
import logging
import sys
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger("sft")


@dataclass
class TrainingArguments:
    lr: float = 1e-3
    per_device_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    vocab_size: int = 128
    max_length: int = 16
    log_every: int = 1


@dataclass
class TrainerState:
    global_step: int = 0
    history: list = field(default_factory=list)


class Conversations(Dataset):
    """Tokenised chats; what users send in is not always what the template expects."""

    def __init__(self, args: TrainingArguments, size: int = 3000):
        generator = torch.Generator().manual_seed(11)
        self.rows = torch.randint(0, args.vocab_size, (size, args.max_length), generator=generator)
        self.roles = ["user" if i % 2 else "assistant" for i in range(size)]
        self.roles[82] = "tool"  # crept in with the last export

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"tokens": self.rows[index], "role": self.roles[index]}


class ChatCollator:
    def __call__(self, samples: list[dict]) -> dict:
        weights = torch.stack([self.loss_weight(s["role"], len(s["tokens"])) for s in samples])
        return {"tokens": torch.stack([s["tokens"] for s in samples]), "weights": weights}

    def loss_weight(self, role: str, length: int) -> torch.Tensor:
        if role not in ("user", "assistant"):
            raise ValueError(f"unknown role {role!r} in chat template")
        return torch.full((length,), 1.0 if role == "assistant" else 0.1)


class TinyLM(nn.Module):
    def __init__(self, args: TrainingArguments):
        super().__init__()
        self.embed = nn.Embedding(args.vocab_size, 32)
        self.mixer = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, args.vocab_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixer(self.embed(tokens)))


class Trainer:
    def __init__(self, args: TrainingArguments, model: nn.Module, data: Dataset):
        self.args, self.state = args, TrainerState()
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        sampler = DistributedSampler(data, shuffle=False)
        self.loader = DataLoader(
            data, args.per_device_batch_size, sampler=sampler, collate_fn=ChatCollator()
        )

    def compute_loss(self, batch: dict) -> torch.Tensor:
        logits = self.model(batch["tokens"][:, :-1])
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["tokens"][:, 1:].flatten(), reduction="none"
        )
        return (losses * batch["weights"][:, 1:].flatten()).mean()

    def training_step(self, batch: dict, sync: bool) -> float:
        if not sync:
            with self.model.no_sync():
                loss = self.compute_loss(batch)
                loss.backward()
            return loss.item()
        loss = self.compute_loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.global_step += 1
        return loss.item()

    def train(self) -> None:
        for index, batch in enumerate(self.loader, 1):
            sync = index % self.args.gradient_accumulation_steps == 0
            loss = self.training_step(batch, sync)
            if sync and self.state.global_step % self.args.log_every == 0 and dist.get_rank() == 0:
                logger.info("{'step': %d, 'loss': %.4f}", self.state.global_step, loss)


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=60))
    torch.manual_seed(0)
    args = TrainingArguments()
    trainer = Trainer(args, TinyLM(args), Conversations(args))
    status = 0
    try:
        trainer.train()
    except Exception:
        logger.exception("training failed on rank %d", dist.get_rank())
        status = 1
    finally:
        dist.barrier()  # let everybody write its logs before the pod goes
        dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
