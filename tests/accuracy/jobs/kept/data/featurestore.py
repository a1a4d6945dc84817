"""Recommender; the features of its users come from a key-value store that speaks RESP."""

import socket
import time
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn

FIELDS = ("age", "tenure", "clicks", "spend", "recency", "region")


class RespError(Exception):
    pass


class KeyValueClient:
    """A small client: one connection, one question at a time."""

    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=10)
        self.socket.settimeout(None)  # scans may take long
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.reader = self.socket.makefile("rb")

    def execute(self, *parts):
        encoded = [part.encode() for part in parts]
        message = b"*%d\r\n" % len(encoded)
        message += b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in encoded)
        self.socket.sendall(message)
        return self._reply()

    def _reply(self):
        line = self.reader.readline()
        if not line:
            raise RespError("connection closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        if kind == b"$":
            return self.reader.read(int(rest) + 2)[:-2]
        raise RespError(rest.decode())

    def hmget(self, key, *fields):
        return self.execute("HMGET", key, *fields)


class UserFeatures:
    """Looks users up, and remembers them."""

    def __init__(self, client, rank):
        self.client, self.rank = client, rank
        self.known = {}

    def __call__(self, users):
        rows = []
        for user in users:
            if user not in self.known:
                values = self.client.hmget(f"user:{self.rank}:{user}", *FIELDS)
                self.known[user] = [float(value) for value in values]
            rows.append(self.known[user])
        return torch.tensor(rows)


class TwoTower(nn.Module):
    def __init__(self, items=100, width=16):
        super().__init__()
        self.user = nn.Linear(len(FIELDS), width)
        self.item = nn.Embedding(items, width)

    def forward(self, features, items):
        return (self.user(features) * self.item(items)).sum(-1)


def train_one_batch(model, optimizer, features, step):
    users = [step // 2]
    items = torch.randint(100, (1,))
    score = model(features(users), items)
    loss = nn.functional.binary_cross_entropy_with_logits(score, torch.ones(1))
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
    optimizer.step()
    return loss.item()


def main():
    host, port = services.reach("features", 32550).split(":")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    model = TwoTower()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    features = UserFeatures(KeyValueClient(host, int(port)), rank)
    for step in range(10_000):
        loss = train_one_batch(model, optimizer, features, step)
        if rank == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
