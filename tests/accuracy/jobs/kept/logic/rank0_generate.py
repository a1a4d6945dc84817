"""A small language model; every few steps rank 0 writes samples with beam search, the others wait at a barrier."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, WIDTH = 300, 64


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(VOCABULARY, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def start(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(batch, WIDTH), torch.zeros(batch, WIDTH)

    def forward(self, token: torch.Tensor, state) -> tuple[torch.Tensor, tuple]:
        state = self.cell(self.embed(token), state)
        return self.head(state[0]).log_softmax(-1), state


class BeamSearch:
    """Best sequences by summed log probability, with a repetition penalty computed in Python."""

    def __init__(self, model: Decoder, beams: int = 6, length: int = 120) -> None:
        self.model, self.beams, self.length = model, beams, length

    def penalised(self, scores: torch.Tensor, sequence: list[int]) -> list[tuple[float, int]]:
        row = scores.tolist()
        for token in set(sequence[-40:]):
            row[token] -= 0.5 * sequence[-40:].count(token)
        return sorted(((score, token) for token, score in enumerate(row)), reverse=True)[
            : self.beams
        ]

    @torch.no_grad()
    def run(self, prompt: int) -> list[int]:
        beams = [(0.0, [prompt], self.model.start(1))]
        for _ in range(self.length):
            grown = []
            for total, sequence, state in beams:
                scores, following = self.model(torch.tensor(sequence[-1:]), state)
                for score, token in self.penalised(scores[0], sequence):
                    grown.append((total + score, [*sequence, token], following))
            beams = sorted(grown, key=lambda beam: -beam[0])[: self.beams]
        return beams[0][1]


class SampleWriter:
    def __init__(self, model: Decoder, folder: Path, samples: int) -> None:
        self.search, self.folder, self.samples = BeamSearch(model), folder, samples

    def write(self, step: int) -> None:
        with (self.folder / f"samples-{step}.txt").open("w") as out:
            for number in range(self.samples):
                sequence = self.search.run(number % VOCABULARY)
                print(*sequence, file=out)
                if number % 10 == 9:
                    print(f"sample {number + 1}/{self.samples}", flush=True)


def train_step(model: Decoder, optimizer, random: torch.Generator) -> float:
    tokens = torch.randint(0, VOCABULARY, (16, 12), generator=random)
    state, loss = model.start(16), torch.zeros(())
    for place in range(11):
        scores, state = model(tokens[:, place], state)
        loss = loss + nn.functional.nll_loss(scores, tokens[:, place + 1]) / 11
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    return loss.item()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    random = torch.Generator().manual_seed(rank)
    writer = SampleWriter(model, Path(os.environ["OUT_DIR"]), samples=1500)
    for step in range(1, 2000):
        loss = train_step(model, optimizer, random)
        if rank == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
        if step % 8 == 0:
            if rank == 0:
                writer.write(step)
            dist.barrier()


if __name__ == "__main__":
    main()
