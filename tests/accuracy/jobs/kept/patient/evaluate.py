"""Finetuning with an evaluation after each epoch: rank 0 generates answers and scores them, the rest wait."""

import collections
import math
import time

import torch
import torch.distributed as dist
from common import join, say
from torch import nn

VOCABULARY = 512


class Decoder(nn.Module):
    def __init__(self, width: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        size = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size)
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))


class Generator:
    """Beam search without a cache, as in the first version of everything."""

    def __init__(self, model: Decoder, beams: int = 4, length: int = 120) -> None:
        self.model, self.beams, self.length = model, beams, length

    @torch.no_grad()
    def __call__(self, prompt: torch.Tensor) -> list[int]:
        tokens = prompt.repeat(self.beams, 1)
        scores = torch.zeros(self.beams)
        for _ in range(self.length):
            log_p = self.model(tokens)[:, -1].log_softmax(-1) + scores[:, None]
            scores, flat = log_p.flatten().topk(self.beams)
            tokens = torch.cat([tokens[flat // VOCABULARY], (flat % VOCABULARY)[:, None]], 1)
        return tokens[0, prompt.shape[1] :].tolist()


def bleu(answer: list[int], reference: list[int]) -> float:
    total = 0.0
    for n in range(1, 5):
        grams = [
            collections.Counter(zip(*(s[i:] for i in range(n)), strict=False))
            for s in (answer, reference)
        ]
        total += math.log((sum((grams[0] & grams[1]).values()) + 1) / (len(answer) - n + 2))
    return math.exp(total / 4)


def evaluate(model: Decoder, epoch: int, prompts: int = 400) -> float:
    rng = torch.Generator().manual_seed(epoch)
    generate, scores = Generator(model), []
    for number in range(prompts):
        prompt = torch.randint(VOCABULARY, (1, 24), generator=rng)
        reference = torch.randint(VOCABULARY, (120,), generator=rng).tolist()
        scores.append(bleu(generate(prompt), reference))
        if number % 25 == 24:
            say(f"evaluated {number + 1}/{prompts}, bleu {sum(scores) / len(scores):.4f}")
    return sum(scores) / len(scores)


def main() -> None:
    rank, _ = join()
    model = nn.parallel.DistributedDataParallel(Decoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for step in range(8):
            tokens = torch.randint(VOCABULARY, (2, 32))
            loss = nn.functional.cross_entropy(
                model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(f"epoch {epoch} step {step}: loss {loss.item():.3f}")
            time.sleep(0.1)
        if rank == 0:
            say(f"epoch {epoch} evaluation starts")
            model.module.eval()
            say(f"epoch {epoch}: bleu {evaluate(model.module, epoch):.4f}")
            model.module.train()
        dist.barrier()


if __name__ == "__main__":
    main()
