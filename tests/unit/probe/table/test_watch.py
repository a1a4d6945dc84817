"""The stream of process tables: what is told, how often, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hangtop_probe.files import filesystems
from hangtop_probe.gpu.gpus import Gpus
from hangtop_probe.gpu.hardware import Hardware
from hangtop_probe.node import permission
from hangtop_probe.proc import activity, procfs
from hangtop_probe.ranks import discovery
from hangtop_probe.ranks.learned import Learned
from hangtop_probe.table import watch as watch_module
from hangtop_probe.table.delta import Differ, Steady, Strings
from hangtop_probe.table.entry import Entry
from hangtop_probe.table.facts import Facts
from hangtop_probe.table.table import Table
from hangtop_probe.table.watch import BUDGET, Watch, quiet_s
from hangtop_probe.wire.tools import Tools
from support.processes import PATIENCE, state, wait_until


def row(pid: int, start: int = 1, **fields: Any) -> dict[str, Any]:
    return {"pid": pid, "start": start, **fields}


def test_strings_are_told_once() -> None:
    strings = Strings()
    assert [strings.number(t) for t in ("a", "b", "a", None)] == [0, 1, 0, None]
    assert strings.take_new() == {"0": "a", "1": "b"}
    assert strings.take_new() == {}
    assert strings.number("b") == 1
    strings.restart()
    assert (strings.number("b"), strings.take_new()) == (0, {"0": "b"})


def test_only_changed_fields_are_sent() -> None:
    differ = Differ()
    assert differ.delta({7: row(7, state="S", rank=1)}).set == {"7": row(7, state="S", rank=1)}
    assert differ.delta({7: row(7, state="S", rank=1)}) == ({}, {})
    assert differ.delta({7: row(7, state="T", rank=1)}).set == {"7": {"state": "T"}}


def meters(**changes: float) -> dict[str, float]:
    return {"cpu_s": 1.0, "main_switches": 7, "main_last_ran_s": 2.0, **changes}


def test_that_a_rank_waits_on_is_not_told() -> None:
    differ = Differ()
    differ.delta({7: row(7, role="rank", meters=meters())})
    assert differ.delta({7: row(7, role="rank", meters=meters(main_last_ran_s=3.0))}) == ({}, {})
    moved = meters(main_last_ran_s=0.1, main_switches=8)
    part = {"main_last_ran_s": 0.1, "main_switches": 8}
    assert differ.delta({7: row(7, role="rank", meters=moved)}).set == {"7": {"meters": part}}
    stopped = row(7, role="rank", state="T", meters=meters(main_last_ran_s=4.0, main_switches=8))
    assert set(differ.delta({7: stopped}).set["7"]) == {"state", "meters"}


def test_that_a_launcher_polls_is_told_now_and_then() -> None:
    differ = Differ()
    differ.delta({7: row(7, role="launcher", meters=meters())})
    later = row(7, role="launcher", meters=meters(main_switches=9))
    assert differ.delta({7: later}, minor=False) == ({}, {})
    part = {"main_switches": 9, "main_last_ran_s": 2.0}
    assert differ.delta({7: later}, minor=True).set == {"7": {"meters": part}}
    rank = row(8, role="rank", meters=meters())
    differ.delta({7: later, 8: rank})
    ran = row(8, role="rank", meters=meters(main_switches=9))
    assert differ.delta({7: later, 8: ran}, minor=False).set == {"8": {"meters": part}}


def test_that_threads_poll_is_told_now_and_then() -> None:
    differ = Differ()
    differ.delta({7: row(7, role="rank", meters=meters())})
    for cpu_s in (1.01, 1.03, 1.04):
        polled = row(7, role="rank", meters=meters(cpu_s=cpu_s))
        assert differ.delta({7: polled}, minor=False) == ({}, {})
    worked = meters(cpu_s=1.06)
    told = differ.delta({7: row(7, role="rank", meters=worked)}, minor=False)
    part = {"cpu_s": 1.06, "main_last_ran_s": 2.0}
    assert told.set == {"7": {"meters": part}}, "that is more than they take"


def thread(tid: int, state: str) -> activity.ThreadRow:
    wchan = None if state == "R" else "poll_schedule_timeout"
    return activity.ThreadRow(tid, "gloo", state, wchan, None, None, None)


def test_a_thread_that_is_caught_running_once_is_not_told() -> None:
    steady = Steady()

    def shown(main: str, other: str, *, rank: bool = True) -> str:
        rows = steady.rows(7, rank, [thread(7, main), thread(8, other)])
        return "".join(row.state for row in rows)

    assert shown("S", "R") == "SR", "the first time it is as it is"
    assert [shown("S", "S"), shown("S", "R"), shown("S", "S")] == ["SS"] * 3
    assert [shown("S", "R"), shown("S", "R"), shown("S", "R")] == ["SS", "SR", "SR"]
    assert [shown("S", "D"), shown("R", "S"), shown("S", "S")] == ["SD", "RS", "SS"]
    assert shown("R", "S", rank=False) == "SS", "of a launcher the main thread, too"
    steady.forget({9})
    assert shown("S", "R") == "SR", "another process"


def test_what_rests_for_long_is_told_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, passes = [1000.0], [dict[str, Any]()]
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: now[0])
    watch = Watch.__new__(Watch)
    watch.interval, watch._rest = 1.0, 2.0
    watch._told_at = watch._sent_at = now[0]
    watch._promised = watch._cost = 0.0
    watch._passes, watch._budget = 100, 0.006

    def piece() -> dict[str, Any]:
        if passes[0]:
            watch._told_at = now[0]
        return {"at": now[0], **passes[0]}

    monkeypatch.setattr(watch, "piece", piece)

    def sent(seconds: int) -> list[float]:
        """Seconds between the pieces of so many passes; each has said when the next one comes."""
        times, due = [now[0]], 0.0
        for _ in range(seconds):
            now[0] += 1.0
            piece = watch.next_piece()
            if piece is not None:
                assert not due or now[0] <= due + 0.5
                times.append(now[0])
                due = now[0] + max(piece.get("pause", 0.0), 1.0)
        return [later - before for before, later in pairwise(times)]

    assert sent(5) == [1.0] * 5
    assert sent(30)[-10:] == [2.0] * 10
    passes[0] = {"set": {"7": {"state": "R"}}}
    assert sent(1) == [1.0], "what is new is told at once"
    passes[0] = {}
    assert sent(5) == [1.0] * 5
    watch._rest = 30.0
    gaps = sent(300)
    assert gaps == sorted(gaps)
    assert gaps[-1] == 30.0
    assert sum(gap < 8 for gap in gaps) < 20, "of half a minute"


def test_what_is_held_back_makes_no_piece_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def changes(watch: Watch, minor: bool, *_: object) -> dict[str, Any]:
        watch._node["load1"] = now[0]
        return {"load1": now[0]} if minor else {}

    machine = Hardware(Gpus(Tools()), root="/nowhere")
    watch = Watch(Table(permission.rights()), 1.0, machine, rest=60.0)
    watch.table.scope(False, frozenset([-1]))
    monkeypatch.setattr(Watch, "_node_changes", changes)
    now = [time.monotonic()]
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: now[0])
    began, due, held = now[0], 0.0, []
    for _ in range(400):
        now[0] += 1.0
        piece = watch.next_piece()
        if piece is not None:
            assert now[0] >= due - 0.5
            due = now[0] + piece.get("pause", 1.0)
            held += [now[0] - began] if "node" in piece else []
    gaps = [later - before for before, later in pairwise(held)]
    assert held[0] == 1.0
    assert 30.0 <= min(gaps) <= max(gaps) <= 60.5
    assert len(gaps) > 5


def test_how_long_nothing_is_said_is_little_beside_how_long_it_lasts() -> None:
    rested = range(0, 600, 5)
    quiet = [quiet_s(still, 1e9) for still in rested]
    assert quiet == sorted(quiet)
    assert all(said <= still / 4 for said, still in zip(quiet, rested, strict=True) if still < 27)
    assert quiet_s(100.0, 1e9) == 80.0, "all that is more than 20 s"
    assert quiet_s(600.0, 30.0) == 30.0


def test_a_process_that_left_tells_its_exit_code() -> None:
    differ = Differ()
    differ.delta({7: row(7), 8: row(8)})
    differ.delta({7: row(7, exit_code=-9), 8: row(8)})
    assert differ.delta({}).gone == {"7": {"exit_code": -9}, "8": {}}


def test_a_pid_given_to_another_process_is_gone_and_new() -> None:
    differ = Differ()
    differ.delta({7: row(7, 1, rank=0)})
    delta = differ.delta({7: row(7, 2, rank=0)})
    assert delta.gone == {"7": {}}
    assert delta.set == {"7": row(7, 2, rank=0)}


def test_after_a_restart_all_is_sent_again() -> None:
    differ = Differ()
    differ.delta({7: row(7), 8: row(8)})
    differ.restart()
    assert differ.delta({7: row(7)}) == ({"7": row(7)}, {"8": {}})
    assert differ.delta({7: row(7)}) == ({}, {})


@pytest.fixture
def named() -> Any:
    """A table that reports one real process, named by pid."""
    code = "import time; print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    assert wait_until(lambda: state(child.pid) == "S")
    processes = Table(permission.rights())
    processes.scope(False, frozenset([child.pid]))
    yield processes, child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_clock_that_is_set_is_told_once(
    named: tuple[Table, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(named[0], 1.0, Hardware(Gpus(Tools()), root="/nowhere"))
    assert "clock_set" not in watch.piece()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 30.0)
    assert watch.piece()["clock_set"] == pytest.approx(-30.0, abs=0.5)
    assert "clock_set" not in watch.piece()


def test_a_watch_of_a_real_process(named: tuple[Table, subprocess.Popen[bytes]]) -> None:
    processes, child = named
    # Our own children are taken for tools of the probe, and yet a named pid is reported.
    watch = Watch(processes, 1.0, Hardware(Gpus(Tools()), root="/nowhere"))
    first = watch.piece()
    assert first["whole"]
    fields = first["set"][str(child.pid)]
    assert fields["role"] == "rank"
    assert fields["ppid"] == os.getpid()
    assert fields["state"] == "S"
    [thread] = fields["threads"]
    assert first["strings"][str(thread[4])] in ("clock_nanosleep", "select", "pselect6")
    assert abs(fields["started_at"] - time.time()) < PATIENCE
    time.sleep(0.3)
    following = watch.piece()
    assert "whole" not in following
    assert "set" not in following, "that it waits on is not told"
    child.kill()
    assert wait_until(lambda: state(child.pid) == "Z")
    assert watch.piece()["set"][str(child.pid)]["exit_code"] == -9
    child.wait()
    assert watch.piece()["gone"] == {str(child.pid): {"exit_code": -9}}


def test_python_programs_that_are_no_ranks_are_told_with_their_pids(
    named: tuple[Table, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, child = named
    monkeypatch.setattr("hangtop_probe.table.table.own_processes", lambda entries: set())
    watch = Watch(Table(permission.rights()), 1.0, Hardware(Gpus(Tools()), root="/nowhere"))

    def of_child() -> list[tuple[int, tuple[str, ...]]]:
        return [one for one in Table.python_processes(watch.table) if one[0] == child.pid]

    monkeypatch.setattr(watch.table, "python_processes", of_child)
    [told] = watch.piece()["node"]["python_processes"]
    assert told.startswith(f"pid {child.pid}: {sys.executable} -c import time")


def test_the_interval_grows_with_the_cost_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: spent[0])
    watch = Watch(Table(permission.rights()), 1.0, Hardware(Gpus(Tools()), root="/nowhere"))
    for _ in range(9):
        spent[0] += 0.05
        watch.piece()
    assert watch.pause == 1.0
    for _ in range(30):
        spent[0] += 0.05
        watch.piece()
    assert watch.pause == pytest.approx(0.05 / BUDGET, rel=0.01)
    for _ in range(30):
        spent[0] += 0.002
        watch.piece()
    assert watch.pause == 1.0


def test_the_head_may_allow_less(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: spent[0])
    machine = Hardware(Gpus(Tools()), root="/nowhere")
    watch = Watch(Table(permission.rights()), 5.0, machine, 0.001)
    for _ in range(4):
        spent[0] += 0.02
        watch.piece()
    assert watch.pause == pytest.approx(0.02 / 0.001)
    assert Watch(Table(permission.rights()), 5.0, machine, 1.0)._budget == BUDGET


def test_processes_that_have_left_leave_nothing_behind() -> None:
    processes = Table(permission.rights())
    watch = Watch(processes, 1.0, Hardware(Gpus(Tools()), root="/nowhere"))
    left = []
    for _ in range(20):
        with subprocess.Popen(["sleep", "60"]) as child:
            try:
                processes.scope(False, frozenset([child.pid]))
                assert str(child.pid) in watch.piece()["set"]
                identity = processes.identity(child.pid)
                assert identity is not None
                processes.learn(identity, Learned(is_worker=True))
                left.append(identity)
            finally:
                child.kill()
    for _ in range(60):
        processes.scan()
    assert watch.piece()["gone"].keys() <= {str(pid) for pid, _ in left}
    pids = {pid for pid, _ in left}
    assert not pids.intersection(processes.entries, processes.roles, watch._differ._sent)
    assert not processes._learned.keys() & set(left)


CROWD = """
import threading, time
for _ in range(100):
    threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(int, 1)], daemon=True).start()
print(flush=True)
while True: time.sleep(0.01)
"""


def await_run(pid: int) -> None:
    """Wait until the main thread of a process has run."""
    schedstat = Path(f"/proc/{pid}/task/{pid}/schedstat")
    before = schedstat.read_text()
    assert wait_until(lambda: schedstat.read_text() != before)


def test_threads_of_a_crowd_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", CROWD], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            looked: list[str] = []
            read = activity.read_thread
            monkeypatch.setattr(
                activity, "read_thread", lambda base, tid: looked.append(base) or read(base, tid)
            )
            one = activity.Activity(child.pid)
            first = one.threads()
            assert len(first) == len(looked) == 101
            assert first[0].tid == child.pid
            seen: set[str] = set()
            for _ in range(-(-100 // activity.IN_TURN)):
                await_run(child.pid)
                looked.clear()
                assert {row.tid for row in one.threads()} == {row.tid for row in first}
                assert len(looked) <= activity.IN_TURN + 1
                assert looked[0].endswith(f"/{child.pid}"), "the main thread always"
                seen.update(looked)
            assert len(seen) == 101
            child.send_signal(signal.SIGSTOP)
            assert wait_until(lambda: set(procfs.states(child.pid).values()) == {"T"})
            for _ in range(-(-100 // activity.IN_TURN_AT_REST) + 2):
                states = {row.state for row in one.threads()}
            assert states == {"T"}, "soon, once the main thread rests"
        finally:
            child.kill()


def test_the_main_thread_is_among_those_of_a_crowd_whose_numbers_are_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers begin anew at 300: a thread may have a lower one than its process."""
    me, lower = os.getpid(), list(range(3_000_000, 3_000_000 + activity.MAX_THREADS + 5))
    monkeypatch.setattr(procfs, "numbers", lambda path: [*lower, me])
    rows = activity.Activity(me).threads()
    assert [row.tid for row in rows] == [me]


def test_a_process_is_read_again_when_it_has_run_another_program() -> None:
    script = "read line; exec sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, text=True) as child:
        try:
            processes = Table(permission.rights())
            processes.scan()
            entry = processes.entries[child.pid]
            entry.grown = True
            assert entry.facts.cmdline[:2] == ("sh", "-c")
            assert child.stdin
            child.stdin.write("\n")
            child.stdin.flush()
            comm = Path(f"/proc/{child.pid}/comm")
            assert wait_until(lambda: comm.read_text() == "sleep\n")
            for _ in range(20):
                processes.scan()
            assert processes.entries[child.pid].facts.cmdline == ("sleep", "60")
        finally:
            child.kill()


def test_what_was_learned_is_kept_and_added_to() -> None:
    processes = Table(permission.rights())
    me = processes.identity(os.getpid())
    assert me is not None
    processes.learn(me, Learned(is_worker=True))
    processes.learn(me, Learned(worker_id=3))
    assert processes._learned[me] == Learned(None, True, 3, False)
    processes.learn(me, Learned(wrap_rank=0, told=(0, 2, None), first_argument=1))
    processes.learn(me, Learned(wrap_rank=1, told=()))
    assert processes._learned[me] == Learned(1, True, 3, told=(0, 2, None), first_argument=1)


@pytest.mark.parametrize(("flags", "full"), [(0, "space"), (os.ST_RDONLY, None)])
def test_what_nobody_can_write_to_is_not_full(
    monkeypatch: pytest.MonkeyPatch, flags: int, full: str | None
) -> None:
    # f_bsize, f_frsize, f_blocks, f_bfree, f_bavail, f_files, f_ffree, f_favail, f_flag, f_namemax
    fs = os.statvfs_result((4096, 4096, 1000, 0, 0, 100, 50, 50, flags, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: fs)
    assert filesystems.full("/image") == full


def entry(pid: int, parent: int, exe: str) -> Entry:
    """A process with its parent, and what it runs."""
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    one = Entry(stat._replace(pid=pid, ppid=parent))
    one.facts = Facts(exe=exe)
    return one


@pytest.mark.parametrize(
    ("starter", "candidates"), [("/bin/bash", {11, 12}), ("/usr/bin/python3", {11, 12, 20})]
)
def test_what_a_shell_has_started_beside_who_is_named_is_another_job(
    starter: str, candidates: set[int]
) -> None:
    processes = Table(permission.rights())
    processes.only = frozenset({11})
    python = "/usr/bin/python3"
    family = ((10, 1, starter), (11, 10, python), (12, 11, python), (20, 10, python))
    processes.entries = {pid: entry(pid, parent, exe) for pid, parent, exe in family}
    found = {pid for pid, _ in processes.unconfirmed()}
    assert found - {10} == candidates


def test_who_may_be_an_agent_of_torchrun_is_sampled() -> None:
    """Who hosts a store; and all Python processes where there are no ranks."""
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    one, none = Entry(stat), frozenset[str]()
    one.facts = Facts(exe="/usr/bin/python3")
    processes = Table(permission.rights())
    processes.entries = {stat.pid: one}
    rank = {1 << 22: discovery.Attribution("rank", "rank 0", 0)}
    launcher = {1 << 22: discovery.Attribution("launcher", "torchrun")}
    named = discovery.Attribution("rank", "rank 0", 0, "--pid", 1 << 22)
    below = named._replace(role="subprocess", rank_source=None)
    for roles, threads, may in (
        ({}, none, True),
        (launcher, none, True),
        (rank, none, False),
        (rank, frozenset(["python3", "pt_tcpstore_uv"]), True),
        ({stat.pid: rank[1 << 22]}, frozenset(["pt_tcpstore_uv"]), False),
        ({1 << 22: named, stat.pid: below}, none, True),
    ):
        processes.roles, one.threads = roles, threads
        assert processes.unconfirmed() == ([one.identity] if may else [])
    processes.roles = {}
    processes.learn(one.identity, Learned(framework="Lightning"))
    assert processes.unconfirmed() == [one.identity], "it may still come to `_wrap`"
    processes.learn(one.identity, Learned(is_agent=True))
    assert processes._learned[one.identity] == Learned(is_agent=True, framework="Lightning")
    assert processes.unconfirmed() == [], "it is known"
