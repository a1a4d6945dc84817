"""A loop and nothing else; what goes wrong is done to it, or happens outside of Python."""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

if "OMPI_COMM_WORLD_RANK" in os.environ:
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
habit = sys.argv[1] if len(sys.argv) > 1 else "none"
culprit = int(os.environ.get("CULPRIT", "1"))
here = Path(os.environ["OUT_DIR"])
if habit != "core":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def before_init(rank):
    if habit == "late" and rank == culprit:
        pipe = here / "config.json"
        os.mkfifo(pipe)
        print("reading the configuration", flush=True)
        pipe.read_text()


def act(rank):
    """What one rank does in its sixth step."""
    if habit == "segfault":
        ctypes.memset(8, 0, 8)
    elif habit == "abort":
        os.abort()
    elif habit == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif habit == "exit":
        raise SystemExit("this rank is done")
    elif habit == "core":
        os.chdir(os.environ["PLACE"])
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        os.abort()
    elif habit == "oom":
        Path(os.environ["PLACE"], "cgroup.procs").write_text(str(os.getpid()))
        cache = {}
        for n in range(10**9):
            cache[n] = torch.ones(1 << 18)
    elif habit == "full":
        while True:
            try:
                torch.save({"w": torch.ones(1 << 20)}, os.path.join(os.environ["PLACE"], "m.pt"))
                break
            except (OSError, RuntimeError) as error:
                print("will try again:", error, flush=True)
                time.sleep(1)
    elif habit == "ask":
        os.dup2(os.pipe()[0], 0)
        input("overwrite the old run? [y/N] ")
    elif habit == "chatty":
        while True:
            print("debug: " + "x" * 200, flush=True)
    elif habit == "fifo":
        os.mkfifo(here / "next_shard")
        (here / "next_shard").read_bytes()


def steps(rank):
    loss = torch.ones(64)
    for step in range(10**9):
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
        if rank == (1 if culprit == 0 else 0):
            print(f"step {step}", flush=True)
        if rank == culprit and step == 5:
            act(rank)
        if step == 5 and habit in ("segfault", "abort", "kill", "exit", "oom", "core"):
            # The result of this rank goes to all by the store, not by a collective.
            dist.distributed_c10d._get_default_store().wait([f"result of {culprit}"])
        time.sleep({"slow": 5.0}.get(habit, 0.05) if rank == culprit else 0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    before_init(int(os.environ["RANK"]))
    print("joining", flush=True)
    dist.init_process_group("gloo")
    steps(dist.get_rank())
