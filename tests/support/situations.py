"""Where threads are: stacks as py-spy 0.4 gives them for CPython 3.11 and torch 2.13, and what
/proc of Linux 6.18 tells of them."""

from __future__ import annotations

from typing import Any

import msgspec

from hangtop_core.model.snapshot import Frame, Thread

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

GLOO_THREADS = (("gloo_tcp_loop", "do_epoll_wait", "epoll_wait"),) + (
    ("pt_gloo_runloop", "futex_do_wait", "futex"),
) * 2


def thread(tid: int, facts: Facts, name: str = "python3") -> Thread:
    """One thread as /proc shows it."""
    state, wchan, syscall, fd, futex = facts
    return Thread(tid, name, state, wchan, syscall, fd, futex)


EXECUTOR: Stack = (frame("_worker", "py:concurrent/futures/thread.py", 81),)
RESULT: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
)

LOOP = (50, "for x, y in loader:")


def with_frame(stack: Stack, at: int = 0, **fields: Any) -> Stack:
    """The stack, with more known of one of its frames."""
    changed: Frame = msgspec.structs.replace(stack[at], **fields)
    return (*stack[:at], changed, *stack[at + 1 :])


def inside(stack: Stack, *within: tuple[int, str]) -> Stack:
    """The stack, with the blocks that its innermost own frame is in."""
    found = []
    told = False
    for one in stack:
        own = one.file.endswith("train.py")
        blocks = within if own and not told else () if own else None
        told = told or own
        found.append(msgspec.structs.replace(one, within=blocks))
    return tuple(found)
