"""One rank of a real job over the nodes: meets, waits, adds up, sends, and says how each went.

Runs in any Python with torch, 3.8 or newer and torch 2.0 or newer, and imports nothing of ours. Two
ways to run it: below a probe, which sends one JSON object a line over standard input
(`below_a_probe`), or by hand under a launcher that numbers ranks (`by_hand`): torchrun, mpirun or
srun.

What it says is one JSON object a line: {"hello": ...}, then for every job {"job", "begin": step}
and {"job", "end": step, "took", ...}, with "error" where a step failed, and {"job", "done": true}.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import select
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

Say = Callable[[Dict[str, Any]], None]

MEBIBYTE = 1 << 20
STEPS = ("store", "init", "barrier", "all_reduce", "bandwidth")
NUMBER = 1000
ROUNDS = 3
ROUND_S = 0.5
FEW = 1 << 16
"""Bytes with which it is found out how many go in that time."""


class Wrong(Exception):
    """A result that is not what it has to be."""


def import_torch() -> Tuple[Any, Any]:
    """Return torch and torch.distributed."""
    import torch
    import torch.distributed

    return torch, torch.distributed


def about() -> Dict[str, Any]:
    """Return what this Python and its torch can do, or why torch cannot be used."""
    began = time.monotonic()
    said: Dict[str, Any] = {
        "python": sys.version.split()[0],
        "path": sys.executable,
        "pid": os.getpid(),
    }
    try:
        torch, dist = import_torch()
    except BaseException as error:  # a broken library raises all sorts of things
        said["why"] = "%s: %s" % (type(error).__name__, str(error)[:300])
        return said
    said.update(torch=torch.__version__, took=round(time.monotonic() - began, 2), gpus=[])
    said["backends"] = [
        name
        for name in ("gloo", "nccl")
        if dist.is_available() and getattr(dist, "is_%s_available" % name, bool)()
    ]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        said["gpus"] = [torch.cuda.get_device_name(index)[:80] for index in range(count)]
    return said


class Job:
    """One meeting of some ranks, from its store to its end."""

    def __init__(self, order: Dict[str, Any], say: Say) -> None:
        self.order = order
        self.say = say
        self.torch, self.dist = import_torch()
        self.rank, self.world = int(order["rank"]), int(order["world"])
        self.limit = timedelta(seconds=float(order.get("limit", 10.0)))
        self.device = self.torch.device(order.get("device", "cpu"))
        self.store: Any = None
        self.began = False

    def run(self) -> bool:
        """Take all steps, up to the first that fails; return whether all went well."""
        try:
            return all(self._step(step) for step in self.order.get("steps", STEPS))
        finally:
            self._leave()
            self.say({"job": self.order["id"], "done": True})

    def _step(self, step: str) -> bool:
        told = {"job": self.order["id"]}
        self.say(dict(told, begin=step))
        began = time.monotonic()
        try:
            value = getattr(self, "step_" + step)()
        except Exception as error:
            wrong = isinstance(error, Wrong)
            text = str(error) if wrong else "%s: %s" % (type(error).__name__, error)
            self.say(dict(told, end=step, error=text[:2000], wrong=wrong))
            return False
        self.say(dict(told, end=step, took=round(time.monotonic() - began, 4), value=value))
        return True

    def _leave(self) -> None:
        if self.began:
            try:
                self.dist.destroy_process_group()
            except Exception as error:  # the job failed before; that is what is told
                sys.stderr.write("leaving: %s\n" % error)
        self.store = None  # its server goes with it

    def _store_options(self) -> Tuple[Tuple[str, int], Dict[str, Any]]:
        """Return how the store is opened: on the one address that is tested, and no other."""
        address, port = self.order["store"]
        options = {"timeout": self.limit, "wait_for_workers": False}
        if self.rank != 0:
            return (address, port), dict(options, is_master=False)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
        options.update(is_master=True, world_size=self.world, master_listen_fd=listener.detach())
        return (address, port), options

    # Steps

    def step_store(self) -> None:
        """Open or join torch's store, read back what was written; rank 0 waits for all others."""
        where, options = self._store_options()
        try:
            self.store = self.dist.TCPStore(*where, **options)
        except NotImplementedError:
            # torch 2.4's libuv server takes no socket that is open already; the older one does.
            self.store = self.dist.TCPStore(*where, use_libuv=False, **options)
        mine = self._key(self.rank)
        self.store.set(mine, "here")
        if self.store.get(mine) != b"here":
            raise Wrong("the store does not give back what was put into it")
        self.store.get(self._key(0))
        self.store.set(mine + "/read", "yes")
        if self.rank == 0:
            self._wait_for_all()

    def _wait_for_all(self) -> None:
        try:
            self.store.wait([self._key(rank) + "/read" for rank in range(self.world)], self.limit)
        except Exception:
            ranks = range(self.world)
            missing = [rank for rank in ranks if not self.store.check([self._key(rank)])]
            raise Wrong("ranks %s did not come to the store" % missing) from None

    def _key(self, rank: int) -> str:
        return "%s/%d" % (self.order["id"], rank)

    def step_init(self) -> None:
        """Connect to all."""
        if self.device.type == "cuda":
            self.torch.cuda.set_device(self.device)
        self.dist.init_process_group(
            self.order.get("backend", "gloo"),
            store=self.dist.PrefixStore("job%s" % self.order["id"], self.store),
            rank=self.rank,
            world_size=self.world,
            timeout=self.limit,
        )
        self.began = True

    def step_barrier(self) -> None:
        """Wait for all."""
        self.dist.barrier()

    def step_all_reduce(self) -> int:
        """Add up numbers whose sum is known exactly, in several types."""
        total = self.world * (self.world + 1) // 2
        for dtype in (self.torch.float32, self.torch.float64, self.torch.int64):
            base = self.torch.arange(NUMBER, device=self.device).to(dtype) % 1024
            mine = base * (self.rank + 1)
            self.dist.all_reduce(mine)
            differing = int((mine != base * total).sum())
            if differing:
                raise Wrong("%d of %d sums of %s are wrong" % (differing, NUMBER, dtype))
        return NUMBER

    def step_bandwidth(self) -> List[List[int]]:
        """Send to and receive from ranks at some distances, all at the same time.

        Where one of them is slow all send less, so that none takes it for a rank that hangs.
        Returns rows [distance, bytes a second in].
        """
        shifts = [shift for shift in (1, 2) if shift < self.world]
        count = int(self.order.get("bytes", 8 * MEBIBYTE))
        least = min(self._shift(shift, FEW, rounds=1) for shift in shifts)
        slowest = self.torch.tensor([least], device=self.device)
        self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MIN)
        count = min(count, max(FEW, int(int(slowest) * ROUND_S)))
        return [[shift, self._shift(shift, count)] for shift in shifts]

    def _shift(self, shift: int, count: int, rounds: int = ROUNDS) -> int:
        here, uint8 = self.device, self.torch.uint8
        out = (self.torch.arange(count, device=here) % 251).to(uint8)
        into = self.torch.zeros(count, dtype=uint8, device=here)
        to, source = (self.rank + shift) % self.world, (self.rank - shift) % self.world
        best = 0.0
        for _ in range(rounds):
            self.dist.barrier()
            self._wait_for_device()
            began = time.monotonic()
            both = [
                self.dist.P2POp(self.dist.isend, out, to),
                self.dist.P2POp(self.dist.irecv, into, source),
            ]
            for one in self.dist.batch_isend_irecv(both):
                one.wait()
            self._wait_for_device()
            best = max(best, count / max(time.monotonic() - began, 1e-9))
        if not bool((into == out).all()):
            raise Wrong("bytes from rank %d arrived changed" % source)
        return int(best)

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def step_numerics(self) -> Dict[str, List[str]]:
        """Compute the same as everybody: floating-point numbers by name, as exact texts."""
        torch, here = self.torch, self.device
        line = torch.arange(0, 10, device=here)
        powers = 10 ** (line / 10)
        # Made of whole numbers: the same everywhere, whatever the generator.
        many = ((torch.arange(65536, device=here) * 7919) % 10007).to(torch.float32) / 10007
        square = many[:16384].reshape(128, 128)
        found = {
            "powers": powers,
            "sum": many.sum().reshape(1),
            "mean of squares": (many * many).mean().reshape(1),
            "exp": torch.exp(many[:64]).sum().reshape(1),
            "matrix product": (square @ square).diagonal()[:8],
            "softmax": torch.softmax(many * 10, 0).max().reshape(1),
        }
        return {name: [float(x).hex() for x in value.cpu()] for name, value in found.items()}

    def step_memory(self) -> Optional[List[int]]:
        """Take and fill some memory of the GPU, and read it back. Returns bytes free and in all."""
        torch = self.torch
        if self.device.type != "cuda":
            return None
        free, whole = torch.cuda.mem_get_info(self.device)
        block = torch.full((64 * MEBIBYTE,), 7, dtype=torch.uint8, device=self.device)
        if int(block.to(torch.int64).sum()) != 7 * 64 * MEBIBYTE:
            raise Wrong("memory of the GPU does not keep what is written")
        return [int(free), int(whole)]


class Orders:
    """Orders from the probe, one a line; read without a buffer, so that one can wait for them."""

    def __init__(self) -> None:
        self._rest = b""

    def next(self) -> Dict[str, Any]:
        """Return the next order; end this process when there will be none."""
        while b"\n" not in self._rest:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        order: Dict[str, Any] = json.loads(line.decode("ascii"))
        return order

    def wait_for(self, descriptor: int) -> bool:
        """Wait until something can be read there; False if another order, or the end, is first."""
        ready: List[int] = [0] if b"\n" in self._rest else []
        while not ready:
            ready, _, _ = select.select([0, descriptor], [], [])
        return descriptor in ready


def below_a_probe() -> None:
    """Do what the probe says until it says nothing more, each job in a child of its own.

    What a job leaves behind in torch, when it fails, would fail the next one, and one that is stuck
    is ended when the next order comes. Importing torch is what takes long, and is done once.
    """
    lines = os.dup(1)
    os.dup2(2, 1)  # NCCL prints to standard output
    # Else torch asks CUDA, which must not be used before a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    began = time.monotonic()

    def say(message: Dict[str, Any]) -> None:
        os.write(lines, json.dumps(message).encode("ascii") + b"\n")

    try:
        import_torch()
    except BaseException:  # told below
        say({"hello": about()})
        return
    took = round(time.monotonic() - began, 2)
    orders = Orders()
    in_child(orders, lambda: say({"hello": dict(about(), took=took)}))
    while True:
        order = orders.next()
        ended = in_child(orders, functools.partial(follow, order, say))
        if ended:
            say({"job": order["id"], "error": "its process was ended by signal %d" % ended})
            say({"job": order["id"], "done": True})


def follow(order: Dict[str, Any], say: Say) -> None:
    """Do one order."""
    for name, value in order.get("environ", {}).items():
        os.environ[name] = value
    Job(order, say).run()


def in_child(orders: Orders, what: Callable[[], None]) -> int:
    """Run something in a child, until it has ended or another order comes.

    Returns the signal that it was ended by, if that was not ours; 0 otherwise.
    """
    alive, held = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            # SIGKILL for it when its parent goes (prctl(2), PR_SET_PDEATHSIG).
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:
                what()
        except BaseException as error:  # the probe keeps what is written here
            sys.stderr.write("%s: %s\n" % (type(error).__name__, error))
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(held)
    by_itself = orders.wait_for(alive)
    if not by_itself:
        os.kill(child, signal.SIGKILL)
    os.close(alive)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if by_itself and os.WIFSIGNALED(status) else 0


def number(*names: str) -> Optional[int]:
    """Return the first of some settings that is there."""
    return next((int(os.environ[name]) for name in names if name in os.environ), None)


def by_hand(arguments: List[str]) -> None:
    """Run under a launcher, and print a line for every step that fails, and one at the end."""
    rank = number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    world = number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
    local = number("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    if rank is None or world is None or len(arguments) != 2:
        sys.exit("usage: nettest_rank.py ADDRESS PORT, under mpirun, srun or torchrun")
    label = "%s rank %d of %d" % (socket.gethostname(), rank, world)
    told = about()
    if "why" in told:
        sys.exit("%s: no torch: %s" % (label, told["why"]))
    gpus = len(told["gpus"])
    nccl = gpus > 0 and "nccl" in told["backends"]
    order: Dict[str, Any] = {"id": 1, "rank": rank, "world": world, "limit": 60.0}
    order["store"] = [arguments[0], int(arguments[1])]
    order["backend"] = "nccl" if nccl else "gloo"
    order["device"] = "cuda:%d" % ((local or 0) % gpus) if nccl else "cpu"
    rates: List[int] = []

    def say(message: Dict[str, Any]) -> None:
        if "error" in message:
            sys.stdout.write("%s: %s: %s\n" % (label, message["end"], message["error"]))
        elif message.get("end") == "bandwidth":
            rates.extend(rate for _, rate in message["value"])

    if not Job(order, say).run():
        sys.exit(1)
    rate = ", receives %d MB/s" % (max(rates) // 1000000) if rates else ""
    sys.stdout.write("%s: ok by %s%s\n" % (label, order["backend"], rate))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        by_hand(sys.argv[1:])
    else:
        below_a_probe()
