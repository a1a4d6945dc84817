"""Finds out by itself which network card to use, tells Gloo, and then trains an autoencoder."""

import fcntl
import os
import socket
import struct
import sys
from datetime import timedelta

SIOCGIFADDR = 0x8915


def address(name):
    """The IPv4 address of a card, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            told = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(told[20:24])


def cards():
    """Names of what is not the loopback and has an address."""
    names = sorted(name for _, name in socket.if_nameindex() if name != "lo")
    return [name for name in names if address(name) is not None]


def choose():
    """The first card there is; there is only one in all machines, after all."""
    found = cards()
    print(os.uname().nodename, "has", ", ".join(found), flush=True)
    return found[0]


def restart_with_card():
    """The variable has to be there before anything of torch is loaded."""
    os.environ["CARD_CHOSEN"] = "1"
    os.environ["GLOO_SOCKET_IFNAME"] = choose()
    os.execv(sys.executable, [sys.executable, *sys.argv])


def network(torch, size=64):
    nn = torch.nn
    encode = nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 4))
    decode = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, size))
    return nn.Sequential(encode, decode)


def average(dist, model):
    """One flat bucket for all gradients."""
    import torch

    grads = [w.grad for w in model.parameters()]
    flat = torch.nn.utils.parameters_to_vector(grads)
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), grads)


def train():
    import torch
    import torch.distributed as dist

    card = os.environ["GLOO_SOCKET_IFNAME"]
    print(f"rank {os.environ['RANK']} starts with {card}", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    model = network(torch)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    basis = torch.randn(4, 64)
    for batch in range(10**9):
        x = torch.randn(32, 4) @ basis
        loss = (model(x) - x).abs().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        average(dist, model)
        optimizer.step()
        if dist.get_rank() == 0 and batch % 10 == 0:
            print(f"batch {batch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    if "CARD_CHOSEN" not in os.environ:
        restart_with_card()
    train()
