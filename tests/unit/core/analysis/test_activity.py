"""What a main thread does, from its frames and the kernel's word."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.activity import Activity, Reader
from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.frames import library_run, package, plain_name, site
from hangtop_core.model.snapshot import DescriptorTable, Failure, Frame
from hangtop_core.stacks.dictionary import PATTERNS
from hangtop_core.stacks.kinds import COMMUNICATION
from support import build, situations
from support.build import World
from support.situations import (
    DISK,
    FIFO_OPEN,
    FLOCK,
    FUTEX,
    IDLE_WORKER,
    PIPE_READ,
    PIPE_WRITE,
    POLL,
    RECVFROM,
    RUN,
    SITE,
    SLEEP,
    STDIN_READ,
    WAITPID,
    c10d,
    frame,
    inline,
    user,
    worker_in,
)


def read(stack: situations.Stack | None, facts: situations.Facts, active: bool = False) -> Activity:
    world = World()
    rank = world.add(stack, facts, sample={"active": active})
    return Reader(world.stacks).rank(rank)


FILELOCK = (
    frame("UnixFileLock.acquire", "filelock/_api.py", 300),
    *user("download", 12),
)
ASYNCIO = (
    frame("EpollSelector.select", "py:selectors.py", 468),
    frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1890),
    frame("run", "py:asyncio/runners.py", 190),
    *user("serve", 12),
)
FUTURE = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
    *user("collect", 12),
)
SHUTDOWN = (frame("_shutdown", "py:threading.py", 1590),)
IMPORT = (
    frame("_path_stat", "<frozen importlib._bootstrap_external>", 147),
    frame("_find_and_load", "<frozen importlib._bootstrap>", 1176),
    frame("<module>", "train.py", 3),
)
NEW_GROUP = (
    frame("_store_based_barrier", "torch/distributed/distributed_c10d.py", 1080),
    frame("_new_group_with_tag", "torch/distributed/distributed_c10d.py", 6060),
    frame("new_group", "torch/distributed/distributed_c10d.py", 5860),
    *user("setup", 12),
)
OBJECTS = (
    frame("all_gather", "torch/distributed/distributed_c10d.py", 4280),
    frame("all_gather_object", "torch/distributed/distributed_c10d.py", 3500),
    *user("gather", 12),
)
ZERO = "torch/distributed/optim/zero_redundancy_optimizer.py"
LIBRARY_DATASET = (
    frame("default_loader", "torchvision/datasets/folder.py", 260),
    frame("_MapDatasetFetcher.fetch", "torch/utils/data/_utils/fetch.py", 54),
    frame("_worker_loop", "torch/utils/data/_utils/worker.py", 374),
    *user("train", 34),
)


@pytest.mark.parametrize(
    ("stack", "facts", "kind"),
    [
        (c10d("all_reduce"), FUTEX, "collective"),
        (c10d("barrier"), FUTEX, "collective"),
        (c10d("recv"), FUTEX, "recv"),
        (c10d("send"), FUTEX, "send"),
        (situations.BACKWARD, FUTEX, "backward"),
        (situations.BACKWARD, RUN, "busy"),
        (situations.INIT, POLL, "init"),
        (NEW_GROUP, POLL, "new-group"),
        (situations.RENDEZVOUS, SLEEP, "rendezvous"),
        (situations.LOADER, POLL, "data"),
        (IDLE_WORKER, POLL, "idle-worker"),
        (LIBRARY_DATASET, DISK, "io"),
        (LIBRARY_DATASET, SLEEP, "inline-data"),
        (worker_in("decode", 9), SLEEP, "sleep"),
        (inline("decode", 9), FIFO_OPEN, "io"),
        (situations.JOIN, FUTEX, "join"),
        (situations.QUEUE, FUTEX, "queue"),
        (FUTURE, FUTEX, "queue"),
        (ASYNCIO, POLL, "queue"),
        (situations.CHILD, WAITPID, "child"),
        (user("system", 9, "os.system(x)"), WAITPID, "child"),
        (situations.PDB, STDIN_READ, "prompt"),
        (situations.EDITOR, FUTEX, "prompt"),
        (FILELOCK, SLEEP, "file-lock"),
        (user("refresh", 9), FLOCK, "file-lock"),
        (situations.URLLIB, RECVFROM, "remote"),
        ((frame("sync", "fsspec/asyn.py", 92), *user("fetch", 12)), FUTEX, "remote"),
        ((frame("read", "fsspec/implementations/local.py", 415), *user("f", 12)), RUN, "busy"),
        ((frame("MergeFrom", "google/protobuf/internal/x.py", 9), *user("f", 12)), RUN, "busy"),
        (situations.SAVE, ("R", None, None, None, None), "checkpoint"),
        (situations.COMPILE, FUTEX, "compiling"),
        (situations.DESTROY, FUTEX, "teardown"),
        (SHUTDOWN, FUTEX, "teardown"),
        (IMPORT, RUN, "importing"),
        (IMPORT, DISK, "io"),
        (user("f", 9), SLEEP, "sleep"),
        (user("f", 9), RUN, "busy"),
        (user("f", 9), PIPE_READ, "io"),
        (user("f", 9), PIPE_WRITE, "output"),
        (user("f", 9, "with self.lock:"), FUTEX, "lock"),
        (user("f", 9, "a.acquire()"), FUTEX, "lock"),
        (user("f", 9, "work.wait()"), FUTEX, "work-wait"),
        ((frame("wait_all", "torch/futures/__init__.py", 350), *user("f", 9)), FUTEX, "work-wait"),
        ((frame("_sync", ZERO, 9), *user("f", 9)), FUTEX, "work-wait"),
        ((frame("_sync", ZERO, 9, "with self._lock:"), *user("f", 9)), FUTEX, "lock"),
        ((frame("_sync", ZERO, 9), *user("f", 9)), RUN, "busy"),
        (user("f", 9, "store.wait([key])"), RECVFROM, "store"),
        (user("f", 9), FUTEX, "waiting"),
        (user("f", 9), ("S", None, None, None, None), "unknown"),
        (None, ("S", None, None, None, None), "unknown"),
        (None, DISK, "io"),
    ],
)
def test_what_a_main_thread_does(
    stack: situations.Stack | None, facts: situations.Facts, kind: str
) -> None:
    assert read(stack, facts).kind == kind


def test_the_operation_is_what_the_user_called() -> None:
    assert read(OBJECTS, FUTEX).op == "all_gather_object"


def test_a_tensor_that_is_awaited_where_it_is_used_first() -> None:
    file = "torch/distributed/_functional_collectives.py"
    stack = (
        frame("OpOverloadPacket.__call__", "torch/_ops.py", 1279),
        frame("wait_tensor", file, 142),
        frame("AsyncCollectiveTensor.trigger_wait", file, 1099),
        frame("AsyncCollectiveTensor.__torch_dispatch__", file, 1140),
        *user("gradient_norm", 133),
    )
    assert read(stack, FUTEX).text == "waits in wait_tensor"


def test_a_store_is_told_by_its_port_where_the_line_cannot_be_read() -> None:
    world = World()
    peer = Socket("tcp", "ESTABLISHED", "127.0.0.1:4000", "127.0.0.1:29500")
    table = DescriptorTable(build.NOW, (Descriptor(17, "socket", "socket:[1]", socket=peer),))
    rank = world.add(user("collect", 9), RECVFROM, descriptors=table)
    assert Reader(world.stacks).rank(rank).kind == "store"


def test_plain_names_of_old_pythons_are_read_as_qualified_ones() -> None:
    plain = tuple(
        Frame(plain_name(one.name), one.file, one.short, one.line) for one in situations.LOADER
    )
    assert read(plain, POLL).kind == "data"
    assert read(situations.LOADER, POLL).kind == "data"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/home/me/train.py", None),
        (SITE + "torch/nn/modules/linear.py", "torch"),
        ("/src/pytorch/torch/nn/modules/linear.py", "torch"),
        (SITE + "lightning/fit.py", "lightning"),
        ("/usr/lib/python3/dist-packages/apt/x.py", "apt"),
        ("/root/.pyenv/versions/3.8.18/lib/python3.8/queue.py", "python"),
        ("<frozen runpy>", "python"),
        ("<string>", "python"),
        ("<eval_with_key>.3", "python"),
        ("<dynamic-code>", None),
        ("<ipython-input-3-1f>", None),
        ("/opt/venv/bin/torchrun", "script"),
        (SITE + "hangtop/demo/training/data.py", None),
    ],
)
def test_whose_code_a_file_is(file: str, name: str | None) -> None:
    assert package(file) == name


def test_training_code_that_is_an_installed_package_counts_as_the_users() -> None:
    stack = (
        frame("all_reduce", "torch/distributed/distributed_c10d.py", 3252),
        frame("step", "mytraining/loop.py", 12),
        frame("main", "mytraining/__main__.py", 5),
        frame("_run_code", "<frozen runpy>", 88),
    )
    assert len(library_run(stack)) == 1
    found = site(stack)
    assert found is not None
    assert found.name == "step"


def test_every_pattern_can_be_reached() -> None:
    """No pattern is hidden behind one before it that takes all it takes."""
    for index, pattern in enumerate(PATTERNS):
        for earlier in PATTERNS[:index]:
            same_names = earlier.names is None or (
                pattern.names is not None and pattern.names <= earlier.names
            )
            same_files = all(any(part in file for part in earlier.files) for file in pattern.files)
            assert not (same_names and same_files), (earlier, pattern)


def test_waiting_kinds_are_in_the_table() -> None:
    assert {pattern.kind for pattern in PATTERNS} > COMMUNICATION - {"store", "work-wait"}


@pytest.mark.parametrize(
    ("failure", "facts", "said"),
    [
        (None, SLEEP, "sleeps at a place that is not known (no stack yet)"),
        ("denied", SLEEP, "sleeps at a place that is not known (no stack: denied)"),
        (None, RUN, "is busy at a place that is not known (no stack yet)"),
        (None, FUTEX, "has given no stack yet, asleep in futex_do_wait at a place that is not "),
        ("denied", FUTEX, "gave no stack (denied), asleep in futex_do_wait at a place that is "),
    ],
)
def test_a_sentence_on_a_rank_without_a_stack_is_plain(
    failure: str | None, facts: situations.Facts, said: str
) -> None:
    world = World()
    why = Failure("other", failure) if failure is not None else None
    rank = world.add(None, facts, sample={"failure": why})
    rank = rank if failure is not None else replace(rank, sample=None)
    found = Reader(world.stacks).rank(rank)
    assert f"{found.text} at {found.at}".startswith(said)


SELECT = ("S", "do_select", "select", None, None)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("time.sleep(3600)", "sleep"),
        ("sleep(5)", "sleep"),
        ("select.select([door], [], [])", "waiting"),
    ],
)
def test_time_sleep_of_python_3_10_is_a_select_and_sleeps(source: str, kind: str) -> None:
    found = read(user("load", 12, source), SELECT)
    assert (found.kind, found.family) == (kind, "sleep" if kind == "sleep" else "poll")


def test_the_kernel_is_asked_of_the_thread_whose_stack_it_is() -> None:
    """The node still counts the first thread as the one of the program, which serves a socket."""
    world, other = World(), 4999
    rank = world.add(user("load", 12, None), RECVFROM)
    threads = *rank.process.threads, situations.thread(other, SLEEP)
    rank = replace(rank, process=replace(rank.process, threads=threads))
    assert rank.sample is not None
    (stack,) = rank.sample.threads
    moved = replace(rank.sample, threads=(replace(stack, tid=other),))
    assert Reader(world.stacks).rank(rank).kind == "remote"
    assert Reader(world.stacks).rank(replace(rank, sample=moved)).kind == "sleep"
