"""Two ranks train a recommender, the third one evaluates checkpoints as they are published."""

import io
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

EVERY = 2000
STORE_TIMEOUT = timedelta(hours=12)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.top = nn.EmbeddingBag(500, 16), nn.Linear(16, 1)

    def forward(self, ids):
        return self.top(self.table(ids))


class Bulletin:
    """Checkpoints by number, in the store of the job."""

    def __init__(self, folder: str):
        self.store, self.folder = dist.distributed_c10d._get_default_store(), folder

    def publish(self, number: int, model: nn.Module):
        path = os.path.join(self.folder, f"ranker-{number}.pt")
        torch.save(model.state_dict(), path)
        self.store.set(f"published/{number}", path)

    def next(self, number: int) -> dict:
        self.store.wait([f"published/{number}"], STORE_TIMEOUT)
        with open(self.store.get(f"published/{number}").decode(), "rb") as file:
            return torch.load(io.BytesIO(file.read()))


def train(bulletin: Bulletin, group: dist.ProcessGroup):
    model = Ranker()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for step in range(1, 1_000_000):
        ids = torch.randint(0, 500, (32, 6))
        loss = (model(ids) - (ids[:, :1] % 2).float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
        optimizer.step()
        time.sleep(0.25)
        if dist.get_rank() == 0:
            if step < 10 or step % 400 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step == 5 or step % EVERY == 0:
                bulletin.publish(step // EVERY, model)


def evaluate(bulletin: Bulletin):
    model = Ranker()
    for number in range(10_000):
        model.load_state_dict(bulletin.next(number))
        with torch.no_grad():
            score = model(torch.randint(0, 500, (256, 6))).mean().item()
        print(f"checkpoint {number}: {score:.4f}", flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=12))
    trainers = dist.new_group([0, 1])
    bulletin = Bulletin(os.environ.get("OUT_DIR", "/tmp"))
    if dist.get_rank() == 2:
        evaluate(bulletin)
    else:
        train(bulletin, trainers)


if __name__ == "__main__":
    main()
