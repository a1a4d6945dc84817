"""Ranks that wait for the lock of a file: which file it is, and who has it locked."""

from __future__ import annotations

import msgspec
import pytest

from hangtop_core.model.descriptors import Descriptor, Holder
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, judged
from support.situations import FLOCK, FUTEX, SLEEP, c10d, frame, user
from support.verdicts import blamed, hung


@pytest.mark.parametrize(
    ("pid", "told", "who"),
    [
        (321, "pid 321 (python3, state S)", "pid 321 (python3, state S)"),
        (4010, "rank 1 (pid 4010), which waits in all_reduce", "rank 1 (pid 4010, state S)"),
    ],
)
def test_a_file_lock_names_its_holder(pid: int, told: str, who: str) -> None:
    world = World()
    world.waiters(3)
    lock = Descriptor(
        9, "file", "/cache/x.lock", holders=(Holder(pid, "python3", "S", "holds the lock"),)
    )
    table = DescriptorTable(NOW, (), waiting_locks=(lock,))
    world.add(user("refresh", 77, "fcntl.flock(f, LOCK_EX)"), FLOCK, descriptors=table)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("file-lock", [3])
    assert "/cache/x.lock" in verdict.summary
    assert f"held by {told}" in verdict.summary
    assert any(f"{who} holds the lock" in one.text for one in verdict.evidence)


@pytest.mark.parametrize("locked", [("/c/x.lock",), ("/c/x.lock", "/other/y.lock")])
def test_a_lock_file_that_is_tried_again_and_again(locked: tuple[str, ...]) -> None:
    world = World()
    world.waiters(3)
    holder = (Holder(321, "python3", "S", "holds the lock"),)
    files = tuple(Descriptor(-1, "file", path, locked="held", holders=holder) for path in locked)
    polls = (frame("_poll", "filelock/_api.py", 1177), *user("refresh", 77, "with lock:"))
    world.add(polls, SLEEP, descriptors=DescriptorTable(NOW, lock_files=files))
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("file-lock", [3])
    # which one it is is told where only one is locked, else all are
    assert ("most likely /c/x.lock" in verdict.summary) == (len(locked) == 1)
    assert all(any(path in one.text for one in verdict.evidence) for path in locked)
    assert ("pid 321" in verdict.summary) == (len(locked) == 1)
    ours = (Holder(world.ranks[0].process.pid, "python3", "S", "holds the lock"),)
    mixed = (msgspec.structs.replace(files[0], holders=ours), *files[1:])
    table = DescriptorTable(NOW, lock_files=mixed)
    world.ranks[3] = msgspec.structs.replace(world.ranks[3], descriptors=table)
    assert "most likely /c/x.lock" in hung(world).summary


def test_a_lock_that_is_tried_by_calls_that_do_not_block() -> None:
    # GIVEN rank 3 in SQLite, which sleeps between its attempts, and rank 0 that has the database
    world = World()
    world.waiters(3)
    holder = (Holder(4000, "python3", "S", "holds the lock"),)
    file = Descriptor(11, "file", "/data/seen.db", "rw", locked="by others", holders=holder)
    table = DescriptorTable(NOW, (file,))
    world.add(user("count", 95, "db.execute(sql)"), SLEEP, descriptors=table, moved_at=NOW)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("file-lock", [3])
    assert "/data/seen.db open (fd 11)" in verdict.summary
    assert (
        "locked by rank 0 (pid 4000), which waits in all_reduce at train.py:56" in verdict.summary
    )
    # what it has locked itself is no reason
    held = Descriptor(11, "file", "/data/seen.db", "rw", locked="held")
    world.ranks.pop()
    world.add(user("count", 95, "time.sleep(1)"), SLEEP, descriptors=DescriptorTable(NOW, (held,)))
    assert hung(world).cause == "missing-collective"


def test_ranks_that_want_the_lock_of_a_rank_that_waits_for_them() -> None:
    world = World()
    world.add(c10d("barrier", 5356), FUTEX)
    holder = (Holder(4000, "python3", "S", "holds the lock"),)
    lock = Descriptor(9, "file", "/cache/x.lock", locked="waiting", holders=holder)
    for _ in range(2):
        table = DescriptorTable(NOW, (), waiting_locks=(lock,))
        world.add(user("refresh", 77, "fcntl.flock(f, LOCK_EX)"), FLOCK, descriptors=table)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("file-lock", [1, 2])
    assert "held by rank 0 (pid 4000), which waits in barrier" in verdict.summary


def test_a_baton_is_not_taken_for_a_lock_that_another_job_has() -> None:
    world = World()
    world.waiters(3)
    holder = (Holder(321, "python3", "S", "holds the lock"),)
    other = Descriptor(-1, "file", "/other/job.lock", locked="held", holders=holder)
    waits = (frame("FileBaton.wait", "torch/utils/file_baton.py", 50), *user("build", 77))
    world.add(waits, SLEEP, descriptors=DescriptorTable(NOW, lock_files=(other,)))
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("file-lock", [3])
    assert "/other/job.lock" not in verdict.summary
    assert "it may be an old one" in verdict.summary


def test_the_extension_is_named_whose_lock_file_is_waited_for() -> None:
    world = World()
    world.waiters(3)
    line = 'return cpp_extension.load("fused_rms", [str(source)], build_directory=str(build)).rms'
    waits = (frame("FileBaton.wait", "torch/utils/file_baton.py", 50), *user("build", 77, line))
    world.add(waits, SLEEP)
    said = hung(world).summary
    assert "waits for the lock of a file (where fused_rms is built) at train.py:77" in said


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/work/ext", "HOME": "/home/me"}, "/work/ext/fused_rms/lock"),
        ({"HOME": "/home/me"}, "/home/me/.cache/torch_extensions/py*/fused_rms/lock"),
        (
            {"HOME": "/home/me", "XDG_CACHE_HOME": "/scratch"},
            "/scratch/torch_extensions/py*/fused_rms/lock",
        ),
    ],
)
def test_the_lock_file_of_an_extension_is_named(env: dict[str, str], path: str) -> None:
    world = World()
    world.waiters(3)
    line = 'rms = cpp_extension.load(name="fused_rms", sources=sources)'
    waits = (frame("FileBaton.wait", "torch/utils/file_baton.py", 50), *user("build", 77, line))
    world.add(waits, SLEEP, process={"env": {"RANK": "3", **env}})
    said = hung(world).summary
    assert f"waits for the lock of a file, most likely {path}, at train.py:77" in said


def test_of_sqlite_the_database_is_named() -> None:
    world = World()
    world.waiters(3)
    holder = (Holder(9, "python3", "S", "holds the lock"),)
    file = Descriptor(11, "file", "/data/seen.db-shm", "rw", locked="by others", holders=holder)
    table = DescriptorTable(NOW, (file,))
    world.add(user("count", 95, "db.execute(sql)"), SLEEP, descriptors=table, moved_at=NOW)
    summary = judged(world).verdicts[0].summary
    assert "with the database /data/seen.db open (its -shm file is fd 11)" in summary
