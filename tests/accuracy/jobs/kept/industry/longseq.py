"""Genomics model under DDP: sequences are sharded as they come from the lab, and not sorted by length."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

LENGTHS = {"amplicon": 160, "gene": 256, "contig": 1408}


class Reads(Dataset):
    """Sequences of one lane; every rank has a lane of its own."""

    def __init__(self, lane: str, count: int = 100_000) -> None:
        self.length = LENGTHS[lane]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        length = self.length - int(torch.randint(0, self.length // 16, (), generator=generator))
        return torch.randint(1, 5, (length,), generator=generator)


def pad(batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(batch, batch_first=True)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (width / self.heads) ** 0.5
        mixed = scores.softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads=4)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GenomeModel(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, width, padding_idx=0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def masked_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    hidden = tokens.masked_fill(torch.rand(tokens.shape) < 0.15, 0)
    logits = model(hidden)
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=0)


def lane_of(rank: int) -> str:
    return ("amplicon", "gene", "contig")[rank % 3]


def main(accumulate: int = 2) -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    model = DDP(GenomeModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(Reads(lane_of(rank)), batch_size=2, collate_fn=pad, drop_last=True)
    batches = iter(loader)
    for step in range(len(loader) // accumulate):
        optimizer.zero_grad(set_to_none=True)
        with model.no_sync():
            for _ in range(accumulate - 1):
                masked_loss(model, next(batches)).backward()
        loss = masked_loss(model, next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
