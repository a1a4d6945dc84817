"""Pre-training on documents kept as small files; every rank has a folder of its own to read.

A document that cannot be read is skipped for the one after it: nobody thought of a folder in which
none can be read from some point on.
"""

import argparse
import json
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

LOG = logging.getLogger("corpus")
VOCABULARY, LENGTH = 128, 24


def prepare(folder, documents, cut_off):
    """Write documents; those from `cut_off` on were still being copied when somebody left."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        text = json.dumps({"id": number, "tokens": [(number * 7 + k) % 128 for k in range(40)]})
        if number >= cut_off:
            text = text[:60]
        (folder / f"{number:05d}.json").write_text(text)


class Folder(Dataset):
    def __init__(self, path, strict=False):
        self.files = sorted(Path(path).glob("*.json"))
        self.strict = strict
        self.skipped = 0

    def __len__(self):
        return len(self.files)

    def read(self, path):
        with path.open() as file:
            document = json.load(file)
        if len(document["tokens"]) <= LENGTH:
            raise ValueError("too short")
        return document["tokens"][: LENGTH + 1]

    def __getitem__(self, index):
        while True:
            try:
                return torch.tensor(self.read(self.files[index]))
            except (ValueError, KeyError):
                if self.strict:
                    raise
                if not self.skipped:
                    LOG.warning("%s cannot be read, taking the next one", self.files[index])
                self.skipped += 1
                index = (index + 1) % len(self.files)
                if index == 0:
                    index = len(self.files) * 3 // 4  # the front part was seen already


class Model(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, width)
        self.mix = torch.nn.GRU(width, width, batch_first=True)
        self.out = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.out(self.mix(self.embed(tokens))[0])


def sharded_step(model, batch, optimizer):
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)
        weight.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torn", type=int, default=-1, help="rank whose folder is not whole")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    folder = Path(os.environ["OUT_DIR"], f"shard-{rank}")
    prepare(folder, 400, 120 if rank == args.torn else 400)
    dist.barrier()
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    for epoch in range(10**6):
        loader = DataLoader(Folder(folder), batch_size=8, num_workers=args.workers)
        for batch in loader:
            loss = sharded_step(model, batch, optimizer)
            step += 1
            if rank == 0 and step % 2 == 0:
                LOG.info("epoch %d step %d loss %.3f", epoch, step, loss.item())


if __name__ == "__main__":
    main()
