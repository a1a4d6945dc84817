"""Distils from a teacher whose layers stay on disk, mapped into memory: there is always room.

The first rank was put into a container that has less memory than the teacher is big.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WIDTH, LAYERS, BIG = 1024, 40, 0  # 4 MiB a layer; BIG is the rank with the big teacher


def enter(name):
    with open(os.environ[name], "w") as group:
        group.write(str(os.getpid()))


def store_teacher(path):
    layers = {f"{n}": torch.randn(WIDTH, WIDTH) / 32 for n in range(LAYERS)}
    torch.save(layers, path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Teacher:
    def __init__(self, path):
        self.layers = torch.load(path, mmap=True)

    @torch.no_grad()
    def __call__(self, x):
        for weight in self.layers.values():
            x = torch.tanh(x @ weight)
        return x


def small_teacher(x):
    return torch.tanh(x.roll(1, dims=1))


def work(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    path = os.path.join(os.environ["PLACE"], "teacher.pt")
    if rank == BIG:
        store_teacher(path)
    dist.barrier()
    student = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    teacher = small_teacher
    for step in range(10**9):
        if step == 6 and rank == BIG:
            enter("ROOM")
            enter("DISK")
            teacher = Teacher(path)
        target = 0
        for _ in range(4 if teacher is not small_teacher else 1):  # several noisy views of it
            x = torch.randn(16, WIDTH)
            target = target + teacher(x)
            if rank == BIG and step == 6:
                print("seen once more", flush=True)
        (student(x) - target).square().mean().backward()
        for weight in student.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        if rank == BIG:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    mp.start_processes(work, args=(3,), nprocs=3, start_method="spawn")
