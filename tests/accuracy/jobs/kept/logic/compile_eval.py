"""Language-model training; rank 0 alone evaluates, with a compiled copy of the model per length bucket."""

import copy
import os
from datetime import timedelta

os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", os.path.join(os.environ.get("OUT_DIR", "/tmp"), "inductor")
)
os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, VOCAB = 48, 4, 28, 211


class Attention(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.slope = nn.Parameter(torch.full((HEADS, 1, 1), 0.1 + layer / 100))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        place = torch.arange(length, device=x.device)
        distance = (place[None] - place[:, None]).abs().to(x.dtype)
        weights = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5) - self.slope * distance
        weights = weights.masked_fill(place[None] > place[:, None], float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        hidden = WIDTH * 2 + 8 * (layer % 7)
        self.attention = Attention(layer)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.gate, self.up = nn.Linear(WIDTH, hidden), nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        y = self.down(F.silu(self.gate(y)) * torch.tanh(self.up(y)))
        return x + y + F.gelu(self.mix(x.transpose(1, 2))).transpose(1, 2)


class Model(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(layer) for layer in range(layers))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Evaluator:
    """Perplexity per length bucket, by rank 0."""

    BUCKETS = (64, 96, 128, 160, 192, 256)

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)

    def run(self, model: nn.Module) -> dict[int, float]:
        self.model.load_state_dict(model.state_dict())
        result = {}
        for length in self.BUCKETS:
            torch._dynamo.reset()
            fast = torch.compile(self.model, dynamic=False, fullgraph=True)
            tokens = torch.randint(0, VOCAB, (4, length))
            logits = fast(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()  # per-token influence needs gradients
            result[length] = loss.item()
        return result


def average_gradients(model: nn.Module) -> None:
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    dist.all_reduce(flat)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    evaluator = Evaluator(model) if rank == 0 else None
    for step in range(1, 1000):
        tokens = torch.randint(0, VOCAB, (2, 32))
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}", flush=True)
        if evaluator is not None and step % 6 == 0:
            print(evaluator.run(model), flush=True)


if __name__ == "__main__":
    main()
