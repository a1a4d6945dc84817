"""Language model; the output of each rank goes through a program that ships it to a collector.

logship.py ship HOST PORT is that program.
"""

import os
import socket
import subprocess
import sys
import time


def ship(host, port):
    """Tag every line of the input, keep it in a file, send it on."""
    label = os.environ.get("SHIP_LABEL", "?")
    with socket.create_connection((host, int(port))) as collector:
        collector.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        for line in sys.stdin.buffer:
            collector.sendall(f"{label} {time.time():.3f} ".encode() + line)


if __name__ == "__main__" and sys.argv[1:2] == ["ship"]:
    ship(*sys.argv[2:])
    sys.exit()

from datetime import timedelta  # noqa: E402

import services  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

VOCABULARY = 512


def redirect_output(address, rank):
    """From here on, what this rank prints goes to the shipper, also what C code prints."""
    host, port = address.split(":")
    shipper = subprocess.Popen(
        [sys.executable, __file__, "ship", host, port],
        stdin=subprocess.PIPE,
        env={**os.environ, "SHIP_LABEL": f"rank{rank}"},
    )
    os.dup2(shipper.stdin.fileno(), 1)
    shipper.stdin.close()
    return shipper


class Samples:
    """Prints what the model writes by now, for people who look at that."""

    def __init__(self, rank, every):
        self.rank, self.every = rank, every

    def maybe(self, step, model, tokens):
        if self.rank != 1 or step % self.every:
            return
        with torch.no_grad():
            guesses = model(tokens).argmax(-1)
        for row, guess in zip(tokens.tolist(), guesses.tolist(), strict=True):
            print(f"step {step} prompt={row} continuation={guess}")


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def train(rank):
    torch.manual_seed(rank)
    model = DistributedDataParallel(Decoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = Samples(rank, every=2)
    for step in range(100_000):
        tokens = torch.randint(VOCABULARY, (16, 64))
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        samples.maybe(step, model.module, tokens)
        print(f"rank {rank} step {step} loss {loss.item():.4f}", file=sys.stderr, flush=True)
        time.sleep(0.02)


def main():
    address = services.reach("collector", 32520)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    redirect_output(address, dist.get_rank())
    train(dist.get_rank())


if __name__ == "__main__":
    main()
