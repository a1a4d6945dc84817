"""Fine-tuning for summaries; rank 0 scores the evaluation set with ROUGE-L, in plain Python.

The others wait for it in a barrier, as in many scripts. No bar is drawn in batch jobs.
"""

import datetime
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import torch
import torch.distributed as dist
from torch import nn

FOLDER = Path(os.environ["OUT_DIR"])
EXAMPLES = 8000
WORDS = 700


def write_examples(path: Path) -> None:
    """References and what the model said, a line each, as generation has left them."""
    chosen = random.Random(5)
    vocabulary = [f"word{n}" for n in range(400)]
    with path.open("w") as file:
        for number in range(EXAMPLES):
            texts = [" ".join(chosen.choices(vocabulary, k=WORDS)) for _ in range(2)]
            row = {"id": number, "reference": texts[0], "prediction": texts[1]}
            file.write(json.dumps(row) + "\n")


def tokenize(text: str) -> list[str]:
    """Words, in lower case, without their endings."""
    words = []
    for word in text.lower().split():
        words.append(word[:-3] if word.endswith("ing") else word)
    return words


def longest_common(left: list[str], right: list[str]) -> int:
    """Length of the longest common subsequence."""
    previous = [0] * (len(right) + 1)
    for one in left:
        row = [0]
        for column, other in enumerate(right):
            if one == other:
                row.append(previous[column] + 1)
            else:
                row.append(max(previous[column + 1], row[-1]))
        previous = row
    return previous[-1]


def rouge_l(reference: str, prediction: str) -> float:
    """F-measure."""
    wanted, said = tokenize(reference), tokenize(prediction)
    common = longest_common(wanted, said)
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def examples(path: Path) -> Iterator[tuple[str, str]]:
    """What is to be scored."""
    with path.open(buffering=1 << 13) as file:
        for line in file:
            row = json.loads(line)
            yield row["reference"], row["prediction"]


class Run:
    """Trains some steps, evaluates, and so on."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=45))
        self.rank = dist.get_rank()
        self.model = nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def train(self, steps: int) -> None:
        """Data parallel, by hand."""
        for step in range(steps):
            loss = self.model(torch.randn(32, 64)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
            self.optimizer.step()
            if self.rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)

    def evaluate(self) -> None:
        """Only the first rank scores."""
        if self.rank == 0:
            path = FOLDER / "generated.jsonl"
            write_examples(path)
            print("scoring generated summaries", flush=True)
            score = mean(rouge_l(*pair) for pair in examples(path))
            (FOLDER / "metrics.json").write_text(json.dumps({"rougeL": score}))
        dist.barrier()


if __name__ == "__main__":
    run = Run()
    for _epoch in range(3):
        run.train(8)
        run.evaluate()
    dist.destroy_process_group()
