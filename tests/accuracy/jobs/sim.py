"""An ensemble: every rank simulates by itself, and they compare notes through the store.

sim.py [FATE] [AT]: what becomes of rank AT in its fifth round.
"""

import ctypes
import mmap
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

fate = sys.argv[1] if len(sys.argv) > 1 else ""
at = int(sys.argv[2]) if len(sys.argv) > 2 else 1


def meet(fate):
    """How a simulation can end."""
    if fate == "thread-segfault":
        broken = threading.Thread(target=lambda: ctypes.string_at(64))
        broken.start()
        broken.join()
    if fate in ("truncated", "truncated-core"):
        if fate == "truncated-core":
            os.chdir(os.environ["PLACE"])
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        with tempfile.TemporaryFile() as file:
            file.truncate(1 << 16)
            view = mmap.mmap(file.fileno(), 1 << 16)
            file.truncate(0)
            return view[5000]
    if fate == "history":
        Path(os.environ["PLACE"], "cgroup.procs").write_text(str(os.getpid()))
        states = [torch.rand(1000, 1000)]
        while True:
            states.append(states[-1] + 1)
    if fate == "shm":
        from torch.utils.data import DataLoader

        pictures = [torch.rand(1 << 21) for _ in range(8)]
        for batch in DataLoader(pictures, batch_size=2, num_workers=1):
            batch.sum()
    if fate == "summary":
        print("summing up", flush=True)
        dist.all_reduce(torch.rand(100))
    if fate == "long-gil":
        print("inverting", flush=True)
        ctypes.PyDLL(None).sleep(100000)
    return None


class Ensemble:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.store = dist.distributed_c10d._get_default_store()
        self.state = torch.rand(100, 100)

    def simulate(self):
        for _ in range(10):
            self.state = torch.sin(self.state @ self.state.T / 100)
        time.sleep(0.05)

    def compare(self, number):
        self.store.set(f"{number}/{self.rank}", str(float(self.state.norm())))
        return [float(self.store.get(f"{number}/{peer}")) for peer in range(self.size)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if fate != "truncated-core":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ensemble = Ensemble()
    for number in range(10**9):
        ensemble.simulate()
        if number == 5 and ensemble.rank == at:
            meet(fate)
        norms = ensemble.compare(number)
        if fate == "summary" and number % 2 == 0:
            dist.all_reduce(ensemble.state)
        if ensemble.rank == (at + 1) % ensemble.size:
            print(f"round {number}: {sum(norms):.1f}", flush=True)
