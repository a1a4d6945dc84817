"""Builders of synthetic snapshots from real frames and thread facts.

The frames are those that py-spy 0.4 gives for CPython 3.11 and torch 2.13, the thread facts those
of Linux 6.18; tests name a situation and get the rank that is in it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.columns import trace_of
from hangtop_core.meters import Meters
from hangtop_core.model import (
    DescriptorTable,
    Failure,
    Frame,
    Job,
    Node,
    Process,
    Rank,
    Recorder,
    Snapshot,
    StackSample,
    Thread,
    ThreadStack,
)
from hangtop_probe.columns import reduce

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangtop_core.diagnosis import Diagnosis

NOW = 1_800_000_000.0
"""The time of every built snapshot."""
ATTACHED = NOW - 60.0
"""Since when its job has been watched."""
HUNG_SINCE = NOW - 300.0
"""When its ranks stopped."""

PYTHON = "/usr/lib/python3.11/"
SITE = "/opt/venv/lib/python3.11/site-packages/"
USER = "/home/me/"

Stack = tuple[Frame, ...]


def frame(name: str, file: str, line: int, source: str | None = None) -> Frame:
    """One frame: `torch/...` is installed, `py:...` is Python's, anything else the user's."""
    if file.startswith("py:"):
        short = file.removeprefix("py:")
        return Frame(name=name, file=PYTHON + short, short=short, line=line, source=source)
    folder = SITE if "/" in file else USER
    full = file if file.startswith(("/", "<")) else folder + file
    return Frame(name=name, file=full, short=file, line=line, source=source)


MODULE = frame("<module>", "train.py", 90)
MAIN = frame("main", "train.py", 80)
BASE: Stack = (MAIN, MODULE)


def user(name: str, line: int, source: str | None = None) -> Stack:
    """A main thread in a function of the user's own."""
    return (frame(name, "train.py", line, source), *BASE)


def c10d(op: str, line: int = 3252, at: int = 56) -> Stack:
    """A main thread in a collective called from the user's `train_step`."""
    return (
        frame(op, "torch/distributed/distributed_c10d.py", line),
        frame("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py", 83),
        frame("train_step", "train.py", at),
        *BASE,
    )


BACKWARD: Stack = (
    frame("_engine_run_backward", "torch/autograd/graph.py", 979),
    frame("backward", "torch/autograd/__init__.py", 395),
    frame("Tensor.backward", "torch/_tensor.py", 623),
    frame("train_step", "train.py", 57),
    *BASE,
)
INIT: Stack = (
    frame("_create_c10d_store", "torch/distributed/rendezvous.py", 199),
    frame("_env_rendezvous_handler", "torch/distributed/rendezvous.py", 278),
    frame("init_process_group", "torch/distributed/distributed_c10d.py", 1840),
    frame("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py", 83),
    *BASE,
)
MESH: Stack = (
    frame("_new_process_group_helper", "torch/distributed/distributed_c10d.py", 2169),
    frame("init_process_group", "torch/distributed/distributed_c10d.py", 1899),
    *BASE,
)
RENDEZVOUS: Stack = (
    frame("_delay", "torch/distributed/elastic/rendezvous/utils.py", 181),
    frame(
        "_DistributedRendezvousOpExecutor.run",
        "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        690,
    ),
    frame(
        "DynamicRendezvousHandler.next_rendezvous",
        "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        1160,
    ),
    frame("main", "torch/distributed/run.py", 900),
    frame("<module>", "/opt/venv/bin/torchrun", 8),
)
LOADER: Stack = (
    frame("_PollLikeSelector.select", "py:selectors.py", 415),
    frame("wait", "py:multiprocessing/connection.py", 947),
    frame("Connection._poll", "py:multiprocessing/connection.py", 440),
    frame("Queue.get", "py:multiprocessing/queues.py", 113),
    frame("_MultiProcessingDataLoaderIter._try_get_data", "torch/utils/data/dataloader.py", 1291),
    frame("_MultiProcessingDataLoaderIter._get_data", "torch/utils/data/dataloader.py", 1464),
    frame("_MultiProcessingDataLoaderIter._next_data", "torch/utils/data/dataloader.py", 1505),
    frame("_BaseDataLoaderIter.__next__", "torch/utils/data/dataloader.py", 725),
    frame("load_batch", "train.py", 34),
    *BASE,
)
_WORKER: Stack = (
    frame("_worker_loop", "torch/utils/data/_utils/worker.py", 374),
    frame("BaseProcess.run", "py:multiprocessing/process.py", 108),
    frame("BaseProcess._bootstrap", "py:multiprocessing/process.py", 314),
    frame("Popen._launch", "py:multiprocessing/popen_fork.py", 71),
    frame("_MultiProcessingDataLoaderIter.__init__", "torch/utils/data/dataloader.py", 1176),
    frame("DataLoader.__iter__", "torch/utils/data/dataloader.py", 505),
    *BASE,
)
IDLE_WORKER: Stack = (*LOADER[:4], *_WORKER)


def worker_in(name: str, line: int, source: str | None = None) -> Stack:
    """A DataLoader worker inside the user's dataset."""
    fetch = "torch/utils/data/_utils/fetch.py"
    return (
        frame(name, "train.py", line, source),
        frame("_MapDatasetFetcher.fetch", fetch, 54),
        *_WORKER,
    )


def inline(name: str, line: int, source: str | None = None) -> Stack:
    """A main thread inside the user's dataset: a DataLoader without workers."""
    return (
        frame(name, "train.py", line, source),
        frame("_MapDatasetFetcher.fetch", "torch/utils/data/_utils/fetch.py", 54),
        frame("_SingleProcessDataLoaderIter._next_data", "torch/utils/data/dataloader.py", 785),
        frame("_BaseDataLoaderIter.__next__", "torch/utils/data/dataloader.py", 725),
        *user("load_batch", 34),
    )


JOIN: Stack = (
    frame("Thread._wait_for_tstate_lock", "py:threading.py", 1139),
    frame("Thread.join", "py:threading.py", 1119),
    *user("locks", 24),
)
THREAD_START: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Event.wait", "py:threading.py", 629),
    frame("Thread.start", "py:threading.py", 969),
    *user("train_step", 101),
)
QUEUE: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Queue.get", "py:queue.py", 171),
    *user("next_prefetched", 44),
)
CHILD: Stack = (
    frame("Popen._try_wait", "py:subprocess.py", 1943),
    frame("Popen._wait", "py:subprocess.py", 2001),
    frame("Popen.communicate", "py:subprocess.py", 1201),
    frame("run", "py:subprocess.py", 550),
    *user("upload_logs", 45),
)
PDB: Stack = (
    frame("Pdb.cmdloop", "py:cmd.py", 126),
    frame("Pdb._cmdloop", "py:pdb.py", 356),
    frame("Pdb.interaction", "py:pdb.py", 435),
    frame("Bdb.trace_dispatch", "py:bdb.py", 90),
    *user("train_step", 41),
)
BUNDLED = "/home/me/.vscode-server/extensions/ms-python.debugpy-2025.8.0/bundled/libs/debugpy"
EDITOR: Stack = (
    frame("Condition.wait", "py:threading.py", 331),
    frame("Event.wait", "py:threading.py", 629),
    frame("PyDB.block_until_configuration_done", f"{BUNDLED}/_vendored/pydevd/pydevd.py", 981),
    frame("_wait_for_attach", f"{BUNDLED}/_vendored/pydevd/pydevd.py", 3040),
    frame("wait_for_client_cls.__call__", f"{BUNDLED}/server/api.py", 325),
    *user("main", 26, "debugpy.wait_for_client()"),
)
URLLIB: Stack = (
    frame("SocketIO.readinto", "py:socket.py", 706),
    frame("HTTPResponse._read_status", "py:http/client.py", 279),
    frame("urlopen", "py:urllib/request.py", 216),
    *user("report", 61),
)
DESTROY: Stack = (
    frame("destroy_process_group", "torch/distributed/distributed_c10d.py", 2400),
    *user("finish", 70),
)
SAVE: Stack = (
    frame("_save", "torch/serialization.py", 1190),
    frame("save", "torch/serialization.py", 967),
    *user("save_checkpoint", 66),
)
COMPILE: Stack = (
    frame("AsyncCompile.wait", "torch/_inductor/async_compile.py", 500),
    frame("compile_fx_inner", "torch/_inductor/compile_fx.py", 700),
    frame("_compile", "torch/_dynamo/convert_frame.py", 1000),
    *user("train_step", 30),
)
RECV: Stack = c10d("recv", 2799, 61)

FUTEX = ("S", "futex_do_wait", "futex", None, "0x5640491d5600")
SLEEP = ("S", "hrtimer_nanosleep", "clock_nanosleep", None, None)
POLL = ("S", "poll_schedule_timeout.constprop.0", "poll", None, None)
RUN = ("R", None, None, None, None)
STOP = ("T", "do_signal_stop", None, None, None)
TRACED = ("t", "ptrace_stop", None, None, None)
PIPE_READ = ("S", "anon_pipe_read", "read", 13, None)
STDIN_READ = ("S", "anon_pipe_read", "read", 0, None)
PIPE_WRITE = ("S", "anon_pipe_write", "write", 1, None)
FIFO_OPEN = ("S", "wait_for_partner", "openat", None, None)
FLOCK = ("S", "locks_lock_inode_wait", "flock", 9, None)
WAITPID = ("S", "do_wait", "wait4", None, None)
RECVFROM = ("S", "wait_woken", "recvfrom", 17, None)
DISK = ("D", "folio_wait_bit_common", "read", 13, None)

Facts = tuple[str, str | None, str | None, int | None, str | None]

_GLOO = (("gloo_tcp_loop", "do_epoll_wait", "epoll_wait"),) + (
    ("pt_gloo_runloop", "futex_do_wait", "futex"),
) * 2


def thread(tid: int, facts: Facts, name: str = "python3") -> Thread:
    """One thread as /proc shows it."""
    state, wchan, syscall, fd, futex = facts
    return Thread(tid, name, state, wchan, syscall, fd, futex)


class World:
    """Collects stacks and ranks, and makes a snapshot of them."""

    def __init__(self, at: float = NOW, observed_since: float = ATTACHED) -> None:
        self.at = at
        self.observed_since = observed_since
        self.stacks: dict[str, Stack] = {}
        self.ranks: list[Rank] = []
        self.nodes: dict[str, Node] = {}

    def key(self, stack: Stack) -> str:
        """Register a stack and give its key."""
        text = "\n".join(f"{f.name}|{f.file}|{f.line}|{f.source}" for f in stack)
        key = blake2b(text.encode(), digest_size=8).hexdigest()
        self.stacks[key] = stack
        return key

    def sample(
        self,
        stack: Stack | None,
        *,
        pid: int = 0,
        active: bool = False,
        gil: bool = False,
        others: Sequence[tuple[str, int, Stack, bool]] = (),
        same_since: float | None = None,
        same_functions_since: float | None = None,
        failure: Failure | None = None,
        count: int = 10,
    ) -> StackSample:
        """One sample; `others` are further threads: name, thread id, stack, holds the GIL."""
        threads = []
        if stack is not None:
            threads = [ThreadStack(pid, "MainThread", active, gil, self.key(stack))]
            threads += [ThreadStack(t, n, False, g, self.key(s)) for n, t, s, g in others]
        first = self.observed_since + 1.0
        return StackSample(
            at=self.at - 0.5,
            took_s=0.02,
            mode="nonblocking",
            threads=tuple(threads),
            failure=failure,
            count=count,
            same_since=first if same_since is None else same_since,
            same_functions_since=first if same_functions_since is None else same_functions_since,
            first_at=first,
        )

    def process(self, pid: int, facts: Facts | None, **fields: Any) -> Process:
        """One process with the threads of a gloo rank."""
        extra: tuple[Thread, ...] = fields.pop("threads", ())
        threads: tuple[Thread, ...] = ()
        if facts is not None:
            gloo = tuple(
                Thread(pid + 1 + i, name, "S", wchan, call)
                for i, (name, wchan, call) in enumerate(_GLOO)
            )
            threads = (thread(pid, facts), *gloo, *extra)
        defaults: dict[str, Any] = {
            "ppid": 100,
            "start": pid * 7,
            "started_at": self.at - 600.0,
            "role": "rank",
            "label": "rank",
            "state": facts[0] if facts else "S",
            "uid": 1000,
            "user": "me",
            "comm": "python3",
            "cmdline": ("python3", "-u", "train.py"),
            "threads": threads,
            "meters": Meters(),
        }
        return Process(pid=pid, **{**defaults, **fields})

    def add(
        self,
        stack: Stack | None,
        facts: Facts | None,
        *,
        rank: int | None = None,
        node: str = "n1",
        process: Mapping[str, Any] | None = None,
        sample: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Rank:
        """Add a rank whose main thread has this stack and these thread facts."""
        number = len(self.ranks) if rank is None else rank
        given = dict(process or {})
        pid = given.pop("pid", 4000 + number * 10)
        taken = self.sample(stack, pid=pid, **(sample or {}))
        env = {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_PORT": "29500"}
        states = {"R": "running", "T": "stopped", "t": "traced", "D": "disk-wait", "Z": "zombie"}
        own = self.process(pid, facts, **{"rank": number, "rank_pid": pid, "env": env, **given})
        defaults: dict[str, Any] = {
            "state": states.get(facts[0] if facts else "S", "sleeping"),
            "moved_at": HUNG_SINCE if facts and facts[0] != "R" else self.at,
            "cpu_share": 0.0,
        }
        one = Rank(
            rank=number,
            node=node,
            process=own,
            sample=taken,
            **{**defaults, **fields},
        )
        self.ranks.append(one)
        return one

    def waiters(
        self, count: int, stack: Stack | None = None, facts: Facts = FUTEX, **fields: Any
    ) -> None:
        """Add ranks that wait in an all_reduce (or in `stack`)."""
        for _ in range(count):
            self.add(stack or c10d("all_reduce"), facts, **fields)

    def worker(
        self, of: Rank, stack: Stack, facts: Facts, number: int = 0, **fields: Any
    ) -> tuple[Process, StackSample]:
        """A DataLoader worker of a rank."""
        pid = of.process.pid + 1000 + number
        process = self.process(
            pid,
            facts,
            role="dataloader-worker",
            label=f"DataLoader worker {number}",
            rank=of.rank,
            rank_pid=of.process.pid,
            worker_id=number,
            **fields,
        )
        return process, self.sample(stack, pid=pid)

    def give_children(
        self,
        rank: Rank,
        children: Iterable[tuple[Process, StackSample | None]],
        moved_at: float | None = HUNG_SINCE,
        tables: Mapping[int, DescriptorTable] | None = None,
    ) -> Rank:
        """Replace a rank by itself with children."""
        pairs = list(children)
        new = msgspec.structs.replace(
            rank,
            children=tuple(process for process, _ in pairs),
            child_samples={p.pid: s for p, s in pairs if s is not None},
            child_moved_at={p.pid: moved_at for p, _ in pairs if moved_at is not None},
            child_descriptors=dict(tables or {}),
        )
        self.ranks[self.ranks.index(rank)] = new
        return new

    def snapshot(self, **fields: Any) -> Snapshot:
        """The snapshot, with one job of all ranks; fields go to the job."""
        nodes = sorted({rank.node for rank in self.ranks} | set(self.nodes))
        defaults: dict[str, Any] = {
            "key": "none@n1:29500",
            "name": "train.py",
            "launcher": "torchrun",
            "id": "none",
            "world_size": len(self.ranks),
            "master": "n1:29500",
            "ranks": tuple(sorted(self.ranks, key=lambda one: one.rank)),
            "nodes": tuple(nodes),
        }
        return Snapshot(
            at=self.at,
            observed_since=self.observed_since,
            tick=60,
            nodes=tuple(self.nodes.get(name, Node(name, "ready")) for name in nodes),
            jobs=(Job(**{**defaults, **fields}),),
            stacks=dict(self.stacks),
        )


def recorder(ops: Sequence[str], completed: int, group: str = "0") -> Recorder:
    """A recorder that has issued `ops` in order, of which the first ones are completed."""
    entries = [
        {
            "process_group": (group, "default_pg"),
            "pg_id": 0,
            "collective_seq_id": seq,
            "profiling_name": op,
            "input_sizes": [[8]],
            "state": "completed" if seq <= completed else "scheduled",
            "record_id": seq - 1,
            "time_created_ns": int(HUNG_SINCE * 1e9),
        }
        for seq, op in enumerate(ops, 1)
    ]
    trace = trace_of(reduce({"version": "2.10", "entries": entries}), 0, "test")
    return Recorder(at=NOW, source="server", path="/run/1.sock", trace=trace)


def judged(world: World, **job: Any) -> Diagnosis:
    """What is concluded of it; fields go to the job."""
    snapshot = world.snapshot(**job)
    return diagnose(snapshot, snapshot.job(None))
