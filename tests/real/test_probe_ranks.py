"""What the real probe tells of ranks that hang in other ways, and of what is no rank."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.node import permission
from support.jobs import run_hangtop
from support.launch import SUPPORT, Started, free_port, torchrun
from support.probe_client import ProbeClient, Table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real


def test_spawned_ranks_are_found_by_their_stack(probe: ProbeClient) -> None:
    script = str(SUPPORT / "gloo_job.py")
    with Started(sys.executable, script, "spawn", str(free_port())) as job:
        table = Table(probe)
        table.until(lambda t: t.hangs(job, 2))
        # Until their stacks are known they are counted as they began.
        by_stack = {"mp.spawn"}
        table.until(lambda t: {r["rank_source"] for r in t.mine(job).values()} == by_stack)
        ranks = table.mine(job)
        assert sorted(r["rank"] for r in ranks.values()) == [0, 1]
        assert {r["launcher_pid"] for r in ranks.values()} == {job.pid}
        assert table.processes[job.pid]["label"] == "mp.spawn"


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Started, Path]]:
    """Rank 1 reads from a FIFO that has no writer, rank 2 waits for a file lock of rank 0."""
    folder = tmp_path_factory.mktemp("waits")
    os.mkfifo(folder / "fifo")
    with torchrun("waits", str(folder), nproc=3) as job:
        yield job, folder


def test_a_pipe_without_a_writer_and_who_is_at_the_other_ends(
    waits: tuple[Started, Path], probe: ProbeClient
) -> None:
    job, folder = waits
    table = Table(probe)
    table.until(lambda t: t.hangs(job, 3))
    pid = table.mine(job)[1]["pid"]
    main = table.threads(pid)[0]
    assert (main["syscall"], main["wchan"]) == ("read", "anon_pipe_read")
    [piece] = probe.pieces(op="descriptors", pids=[pid])
    by_fd = {row["fd"]: row for row in piece["descriptors"]}
    assert by_fd[main["fd"]]["target"] == str(folder / "fifo")
    assert by_fd[main["fd"]]["kind"] == "fifo"
    assert by_fd[main["fd"]]["holders"] == []
    assert by_fd[0]["kind"] == "device"
    sockets = [row["socket"] for row in piece["descriptors"] if row.get("socket")]
    peers = {s["peer_pid"] for s in sockets if s["state"] == "ESTABLISHED"}
    assert table.mine(job)[0]["pid"] in peers


def test_who_holds_the_lock_a_rank_waits_for(
    waits: tuple[Started, Path], probe: ProbeClient
) -> None:
    job, folder = waits
    path = str(folder / "lock")
    table = Table(probe)
    table.until(lambda t: t.hangs(job, 3))
    ranks = table.mine(job)
    pids = [ranks[0]["pid"], ranks[2]["pid"]]
    holder, waiter = probe.pieces(op="descriptors", pids=pids)
    assert waiter["waiting_locks"][0]["target"] == path
    [held_by] = waiter["waiting_locks"][0]["holders"]
    assert (held_by["pid"], held_by["how"]) == (pids[0], "holds the lock")
    locked = [row["target"] for row in holder["descriptors"] if row.get("locked") == "held"]
    assert locked == [path]
    # who tries it again and again stands nowhere: for that there are the lock files of its user
    [told] = [row for row in waiter["lock_files"] if row["target"] == path]
    assert [one["pid"] for one in told["holders"]] == [pids[0]]
    assert waiter["store_port"]["socket"]["state"] == "LISTEN"
    assert job.pid in [one["pid"] for one in waiter["store_port"]["holders"]]


BREAKS = """#!/bin/sh
for word; do [ "$before" = -p ] && echo $word >> %s; before=$word; done
exec %s "$@" -ex 'set $orig_rax = -1' -ex detach
"""
"""What gdb 13 leaves where there is AMX: a system call that returns 514 instead of going on."""
needs_gdb = pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")


def attachable(table: Table, job: Started) -> set[int]:
    """The ranks of a job, which gdb may attach to."""
    ranks = {rank["pid"] for rank in table.mine(job).values()}
    if not all(map(permission.may_attach, ranks)):
        pytest.skip("this user may not attach to its processes")
    return ranks


@needs_gdb
@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets a register of x86-64")
def test_a_gdb_that_breaks_what_it_calls_into_comes_to_no_rank(
    waits: tuple[Started, Path], probe: ProbeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = waits
    table = Table(probe)
    table.until(lambda t: t.hangs(job, 3))
    ranks = attachable(table, job)
    gdb, touched = tmp_path / "gdb", tmp_path / "touched"
    gdb.write_text(BREAKS % (touched, shutil.which("gdb")))
    gdb.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    recorders = []
    for _ in range(3):  # a rank that is asked at another moment may have a reason of its own
        touched.unlink(missing_ok=True)
        told = run_hangtop("flight", "--allow-inject", "--json", "--pid", str(job.pid))
        assert told.returncode == 13, told.stderr
        recorders = json.loads(told.stdout)["flight"]["recorders"]
        if len(recorders) == 1:
            break
    assert len(recorders) == 1, recorders
    one = recorders[0]
    assert one["ranks"] == [0, 1, 2]
    assert "gdb on this node breaks what it calls into" in one["why"]
    assert "OSError: [Errno 514]" in one["why"]
    assert one["fix"].startswith("a newer gdb on its node")
    assert len(touched.read_text().split()) == 1, "the ranks of a node share one trial"
    told = run_hangtop("doctor", "--json")
    rungs = {rung["name"]: rung for rung in json.loads(told.stdout)["nodes"][0]["rungs"]}
    assert (rungs["gdb"]["state"], told.returncode) == ("warning", 0)
    assert "breaks what it calls into" in rungs["gdb"]["text"]
    assert ranks.isdisjoint(map(int, touched.read_text().split()))
    assert ranks <= set(job.pids())


@needs_gdb
def test_gdb_on_the_command_line_reads_ranks_that_are_there_afterwards(
    waits: tuple[Started, Path], probe: ProbeClient
) -> None:
    job, _ = waits
    table = Table(probe)
    table.until(lambda t: t.hangs(job, 3))
    before = attachable(table, job)
    told = run_hangtop("flight", "--allow-inject", "--json", "--pid", str(job.pid))
    assert told.returncode == 0, told.stderr
    [one] = json.loads(told.stdout)["flight"]["recorders"]
    assert (one["ranks"], one["by"]) == ([0, 1, 2], "gdb, which called torch")
    assert before <= set(job.pids())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Started, Path]]:
    """Three ranks with a worker server each, of which rank 2 sleeps; the last test orphans them."""
    folder = tmp_path_factory.mktemp("served")
    with torchrun("server", str(folder), nproc=3) as job:
        yield job, folder


def test_the_flight_recorder_of_a_rank_with_a_worker_server(
    served: tuple[Started, Path], probe: ProbeClient
) -> None:
    job, folder = served
    table = Table(probe)
    table.until(lambda t: t.hangs(job, 3))
    ranks = table.mine(job)
    pids = [ranks[0]["pid"], ranks[2]["pid"], job.pid]
    pieces = {one["pid"]: one for one in probe.pieces(op="recorder", pids=pids)}
    waiting, culprit, launcher = (pieces[pid] for pid in pids)
    assert (waiting["source"], waiting["path"]) == ("server", f"{folder}/{pids[0]}.sock")
    assert (waiting["trace"]["length"], culprit["trace"]["length"]) == (4, 3)
    assert launcher["failure"]["kind"] == "missing"
    assert ("server", "no-thread") in [(one["way"], one["code"]) for one in launcher["ways"]]
    told = run_hangtop("flight", "--json", "--pid", str(job.pid))
    assert told.returncode == 10, told.stderr
    found = json.loads(told.stdout)
    [culprit_told] = found["verdicts"][0]["culprits"]
    assert (culprit_told["rank"], culprit_told["pid"]) == (2, pids[1])
    assert [one["by"] for one in found["flight"]["recorders"]] == ["a worker server"]
    assert found["hung_for_s"] > 1


def test_orphaned_ranks_are_found(served: tuple[Started, Path], probe: ProbeClient) -> None:
    job, _ = served
    table = Table(probe)
    table.until(lambda t: t.hangs(job, 3))
    job.process.kill()
    job.process.wait()
    table.until(lambda t: all(r["ppid"] != job.pid for r in t.mine(job).values()))
    ranks = table.mine(job)
    assert set(ranks) == {0, 1, 2}
    assert {rank["launcher_pid"] for rank in ranks.values()} == {None}
    assert {rank["launcher"] for rank in ranks.values()} == {"torchrun"}
    with ProbeClient() as fresh:
        late = Table(fresh)
        late.until(lambda t: set(t.mine(job)) == {0, 1, 2})
        for rank in late.mine(job).values():
            assert late.rested(rank["pid"]) > 1  # also before this probe came


def test_a_process_that_leaves_and_one_that_is_no_python(probe: ProbeClient) -> None:
    with Started("sleep", "100") as sleeper:
        [piece] = probe.pieces(op="stacks", pids=[sleeper.pid])
        assert piece["failure"]["kind"] == "not-python"
        os.kill(sleeper.pid, signal.SIGKILL)
        sleeper.process.wait()
        [piece] = probe.pieces(op="stacks", pids=[sleeper.pid])
        assert piece["failure"]["kind"] == "gone"
        assert probe.ask(op="strace", pid=sleeper.pid)[-1]["err"]["kind"] == "gone"
