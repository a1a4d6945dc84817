"""Ranks that the kernel ended: what is believed of them, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.analysis.verdict.case import Case
from hangtop_core.analysis.verdict.death import CRASHED
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.meters import Meters
from hangtop_core.model.node.facts import KernelLine
from hangtop_core.model.output import Output
from hangtop_core.model.process import Limits
from hangtop_core.model.snapshot import Fact, Node
from support.build import HUNG_SINCE, NOW, World
from support.logs import parsed
from support.situations import FUTEX, SLEEP, c10d

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Snapshot

COUNTED: dict[str, Any] = {"oom_kills": 3, "oom_killed_at": HUNG_SINCE + 4}
OOM = "Memory cgroup out of memory: Killed process {} (python3) total-vm:1kB"
FAULT = "python3[{}]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6[1+2]"


def lost(exit_code: int | None, *lines: str, when: float = HUNG_SINCE, **node: Any) -> Diagnosis:
    """Three ranks, of which rank 1 with pid 4010 has left."""
    world = World()
    told = tuple(KernelLine(when, text) for text in lines)
    world.nodes["n1"] = Node("n1", "ready", kernel_lines=told, **node)
    world.waiters(1)
    process = {"state": "X", "gone_at": HUNG_SINCE, "exit_code": exit_code}
    world.add(None, None, state="exited", process=process)
    world.waiters(1)
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None))


@pytest.mark.parametrize(
    ("cause", "exit_code", "lines", "node"),
    [
        ("rank-oom-killed", None, [OOM.format(4010)], {}),
        ("rank-oom-killed", -9, [], {"oom_kills": 3, "oom_killed_at": HUNG_SINCE + 4}),
        ("rank-oom-killed", None, [], {"oom_kills": 3, "oom_killed_at": HUNG_SINCE + 4}),
        # The kernel names the process that was counted: it is another one.
        ("rank-exited", -9, [OOM.format(77)], {**COUNTED, "pid_ns": 4026531836}),
        ("rank-exited", 1, [], {"oom_kills": 3, "oom_killed_at": HUNG_SINCE + 4}),
        ("rank-exited", -9, [], {"oom_kills": 3, "oom_killed_at": HUNG_SINCE - 60}),
        ("rank-exited", -9, [], {"oom_kills": 3}),
        ("rank-exited", -15, [OOM.format(77)], {"oom_kills": 3}),
        ("rank-crashed", -11, [], {}),
        ("rank-crashed", -6, [], {}),
        ("rank-crashed", None, [FAULT.format(4010)], {}),
        # In a container the kernel's pids are other ones: name and time tell.
        ("rank-crashed", None, [FAULT.format(990123)], {}),
        # Where they are the same, it was another process.
        ("rank-exited", None, [FAULT.format(990123)], {"pid_ns": 4026531836}),
        ("rank-crashed", None, [FAULT.format(4010)], {"pid_ns": 4026531836}),
        # One of another rank of the job.
        ("rank-exited", None, [FAULT.format(4000)], {}),
    ],
)
def test_cause(cause: str, exit_code: int | None, lines: list[str], node: dict[str, Any]) -> None:
    found = lost(exit_code, *lines, **node)
    assert [v.cause for v in found.verdicts] == [cause]
    assert [c.rank for c in found.verdicts[0].culprits] == [1]
    assert found.verdicts[0].victims == (0, 2)


@pytest.mark.parametrize(
    ("exit_code", "lines", "confidence", "word"),
    [
        (-9, [OOM.format(4010)], 0.97, " killed"),
        (-9, [], 0.85, "probably killed"),
        (None, [], 0.7, "probably killed"),
    ],
)
def test_a_count_of_the_whole_node_is_less_sure(
    exit_code: int | None, lines: list[str], confidence: float, word: str
) -> None:
    found = lost(exit_code, *lines, oom_kills=3, oom_killed_at=HUNG_SINCE + 4).verdicts[0]
    assert (found.cause, found.confidence) == ("rank-oom-killed", confidence)
    assert word in found.summary


def test_line_from_before_the_job_is_not_believed() -> None:
    found = lost(None, OOM.format(4010), when=NOW - 5000)
    assert [v.cause for v in found.verdicts] == ["rank-exited"]


LAUNCHED = {"LOCAL_WORLD_SIZE": "3"}
MET_HERE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def lacking(
    *lines: str, when: float = HUNG_SINCE, from_launcher: dict[str, str] = LAUNCHED, **launcher: Any
) -> Snapshot:
    """Three ranks of pids 4000, 4010, 4020 on one node, of which nobody has seen rank 1."""
    world = World()
    told = tuple(KernelLine(when, text) for text in lines)
    facts = {"core": Fact(True, path="/cores/core.%p")}
    world.nodes["n1"] = Node("n1", "ready", kernel_lines=told, capabilities=facts)
    for rank in (0, 2):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), **from_launcher}
        world.add(c10d("all_reduce"), FUTEX, rank=rank, process={"env": env})
    agent = world.process(3990, SLEEP, node="n1", role="launcher", **launcher)
    return world.snapshot(world_size=3, launchers=(agent,) if launcher else ())


def absent(*lines: str, when: float = HUNG_SINCE, **launcher: Any) -> Diagnosis:
    """What is said of them."""
    snapshot = lacking(*lines, when=when, **launcher)
    return diagnose(snapshot, snapshot.job(None))


@pytest.mark.parametrize(
    ("launcher", "state", "ago", "cause"),
    [
        # torchrun would have ended the others: the line is about another job's process.
        ("torchrun", "S", 30.0, "rank-exited"),
        ("torchrun", "S", 4.0, "rank-crashed"),
        ("torchrun", "T", 30.0, "rank-crashed"),
        ("mpirun", "S", 30.0, "rank-crashed"),
    ],
)
def test_a_rank_beside_which_torchrun_lets_others_run_has_not_crashed(
    launcher: str, state: str, ago: float, cause: str
) -> None:
    found = absent(FAULT.format(4010), when=NOW - ago, launcher=launcher, state=state)
    assert [v.cause for v in found.verdicts] == [cause]


def test_a_fault_known_by_its_time_alone_is_told_as_likely() -> None:
    assert "most likely crashed at" in absent(FAULT.format(4021)).verdicts[0].summary
    assert "most likely" not in absent(FAULT.format(4010)).verdicts[0].summary


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("rank-oom-killed", OOM.format(4010)),
        ("rank-crashed", FAULT.format(4015)),
        # Of a thread: the others stopped at that time.
        ("rank-crashed", FAULT.format(4021)),
        ("rank-exited", OOM.format(4021)),
        ("rank-exited", FAULT.format(3999)),
        ("rank-exited", FAULT.format(4010).replace("python3", "vim")),
    ],
)
def test_rank_that_nobody_has_seen_is_told_by_its_pid(cause: str, line: str) -> None:
    found = absent(line)
    assert [v.cause for v in found.verdicts] == [cause]
    assert [c.rank for c in found.verdicts[0].culprits] == [1]


@pytest.mark.parametrize(("pid", "core"), [(4010, "/cores/core.4010"), (4021, "/cores/core.*")])
def test_a_rank_that_nobody_has_seen_leads_to_its_core(pid: int, core: str) -> None:
    """The kernel tells the number of a thread, which is that of its process in the main one."""
    assert f"hangtop core {core}" in absent(FAULT.format(pid)).verdicts[0].next_steps[0]
    assert "core" not in absent(OOM.format(4010)).verdicts[0].next_steps[0]


def test_fault_of_some_thread_at_another_time_is_not_believed() -> None:
    found = absent(FAULT.format(4021), when=HUNG_SINCE - 10)
    assert [v.cause for v in found.verdicts] == ["rank-exited"]


def last_absent(pid: int, *, own: int = 4011, start: float = 0.0, other: int = 0) -> Diagnosis:
    """Three ranks of pids 4000, 4010 and one that nobody has seen, and a rank of another job.

    Rank 1 has a thread of the number ``own``; the other job's rank began ``start`` seconds later,
    and has the number ``other``.
    """
    world = World()
    world.nodes["n1"] = Node(
        "n1", "ready", kernel_lines=(KernelLine(HUNG_SINCE + 60, FAULT.format(pid)),)
    )
    for rank in (0, 1):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
        world.add(c10d("all_reduce"), FUTEX, rank=rank, process={"env": env})
    threads = tuple(
        msgspec.structs.replace(one, tid=own + i)
        for i, one in enumerate(world.ranks[1].process.threads[1:])
    )
    main = world.ranks[1].process.threads[:1]
    process = msgspec.structs.replace(world.ranks[1].process, threads=main + threads)
    world.ranks[1] = msgspec.structs.replace(world.ranks[1], process=process)
    snapshot = world.snapshot(world_size=3)
    process = msgspec.structs.replace(
        process, pid=other, started_at=process.started_at + start, threads=()
    )
    stranger = msgspec.structs.replace(world.ranks[1], rank=0, process=process)
    another = msgspec.structs.replace(
        snapshot.jobs[0], key="other", name="other", ranks=(stranger,), world_size=1
    )
    snapshot = msgspec.structs.replace(snapshot, jobs=(*snapshot.jobs, another))
    return diagnose(snapshot, snapshot.job(snapshot.jobs[0].key))


@pytest.mark.parametrize(
    ("given", "crashed"),
    [
        ({"pid": 4011, "own": 4030}, True),
        # What was started in between began with the ranks.
        ({"pid": 4050, "own": 4060, "start": 1.0, "other": 4040}, True),
        # Rank 1 had begun to work before that was started, or something else had.
        ({"pid": 4050, "own": 4015}, False),
        ({"pid": 4050, "own": 4060, "start": 9.0, "other": 4040}, False),
        # It is a process of another job.
        ({"pid": 4050, "own": 4060, "other": 4050}, False),
    ],
)
def test_what_was_started_after_the_ranks_of_a_node_is_none_of_them(
    given: dict[str, Any], crashed: bool
) -> None:
    causes = [v.cause for v in last_absent(**given).verdicts]
    assert causes[:1] == ["rank-crashed" if crashed else "rank-exited"]


def test_while_torchrun_may_still_end_the_others_a_fault_decides_nothing() -> None:
    """That of another job's process in the same second would be taken for that of its rank."""
    fresh = {"when": NOW - 4.0, "launcher": "torchrun", "state": "S"}
    assert "most likely crashed" in absent(FAULT.format(4010), **fresh).verdicts[0].summary
    snapshot = lacking(FAULT.format(4010), **fresh)
    decides = CRASHED.find(Case(snapshot, snapshot.jobs[0]), ())
    assert [hit.decisive for hit in decides] == [False]


def test_unreadable_kernel_log_is_a_blind_spot_where_a_rank_is_lost() -> None:
    denied = {"kernel log": Fact(ok=False, why="/dev/kmsg: not permitted", fix="--sudo")}
    spots = [s for s in lost(None, capabilities=denied).blind_spots if s.what == "kernel log"]
    assert [(s.nodes, s.fix) for s in spots] == [(("n1",), "--sudo")]
    world = World()
    world.nodes["n1"] = Node("n1", "ready", capabilities=denied)
    world.waiters(3)
    snapshot = world.snapshot()
    told = diagnose(snapshot, snapshot.job(None)).blind_spots
    assert "kernel log" not in [s.what for s in told]


@pytest.mark.parametrize(
    ("pattern", "limit", "step"),
    [
        ("core", None, "hangtop core /work/core"),
        ("/cores/%e-%p", None, "hangtop core /cores/python3-4010"),
        ("/cores/%t $(reboot)-%p", None, "hangtop core /cores/*' $(reboot)-4010'"),
        ("core.%p", 0, "ulimit -c is 0"),
        ("|/usr/lib/systemd/systemd-coredump %P", 0, "coredumpctl dump 4010 -o core.4010"),
        ("|/usr/lib/systemd/systemd-coredump %P %c", 0, "ulimit -c is 0"),
        ("|/usr/share/apport/apport -p%p", 0, "core /var/lib/apport/coredump/core.*.4010.*"),
        ("|/opt/site/keep-core %p", 0, "which keep-core has got: hangtop core CORE"),
        ("", None, "core_pattern of the node is empty"),
    ],
)
def test_a_crash_leads_to_its_core(pattern: str, limit: int | None, step: str) -> None:
    world = World()
    facts = {"core": Fact(True, path=pattern)}
    world.nodes["n1"] = Node("n1", "ready", capabilities=facts)
    world.waiters(1)
    process = {
        "state": "X",
        "gone_at": HUNG_SINCE,
        "exit_code": -11,
        "cwd": "/work",
        "comm": "python3",
        "limits": Limits(core_size=limit),
    }
    world.add(None, None, state="exited", process=process)
    snapshot = world.snapshot()
    (verdict,) = diagnose(snapshot, snapshot.job(None)).verdicts
    assert verdict.cause == "rank-crashed"
    assert step in " | ".join(verdict.next_steps)


@pytest.mark.parametrize(
    ("pattern", "where", "steps"),
    [
        (
            "/cores/%e-%p",
            "to disk, probably under /cores",
            "core: ulimit -c 0 | hangtop core /cores/python3-4010",
        ),
        ("core", "to disk, probably under /work", "hangtop core /work/core"),
        ("|/opt/keep-core %p", "to keep-core", "until keep-core has taken it (up to 3.0 GiB)"),
        ("|/opt/keep-core %p", "to keep-core", "prlimit --core=1 COMMAND"),
    ],
)
def test_a_core_that_is_being_written(pattern: str, where: str, steps: str) -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", capabilities={"core": Fact(True, path=pattern)})
    world.waiters(1)
    process = {
        "dumping_core": True,
        "cwd": "/work",
        "comm": "python3",
        "limits": Limits(core_size=0),
        "meters": Meters(rss=3 << 30),
    }
    world.add(None, FUTEX, process=process)
    snapshot = world.snapshot()
    (verdict,) = diagnose(snapshot, snapshot.job(None)).verdicts
    assert verdict.cause == "rank-dumping-core"
    assert f"is writing its core {where}" in verdict.summary
    told = " | ".join(verdict.next_steps)
    assert steps in told
    assert "kill -9 4010" in told
    assert "leaves no core" not in told, "the kernel writes it, whatever the limit was"


SUMMARY = """\
============================================================
Root Cause (first observed failure):
[0]:
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : {status} (pid: 4010)
  error_file: <N/A>
  traceback : Signal {status} received by PID 4010
============================================================
"""
MPIRUN = "mpirun noticed that process rank 1 with PID 4010 on node n1 exited on signal {} ({}).\n"
SRUN = "srun: error: n1: task 1: {}\n"
TORCHRUN = "failed (exitcode: {status}) local_rank: 1 (pid: 4010) of binary: p\n"


@pytest.mark.parametrize(
    ("text", "cause", "name"),
    [
        (TORCHRUN.format(status=-7) + SUMMARY.format(status=-7), "rank-crashed", "SIGBUS"),
        (TORCHRUN.format(status=-9) + SUMMARY.format(status=-9), "rank-exited", ""),
        (SUMMARY.format(status=1), "rank-exited", ""),
        (MPIRUN.format(11, "Segmentation fault"), "rank-crashed", "SIGSEGV"),
        (MPIRUN.format(9, "Killed"), "rank-exited", ""),
        (SRUN.format("Bus error (core dumped)"), "rank-crashed", "SIGBUS"),
        (SRUN.format("Killed"), "rank-exited", ""),
    ],
)
def test_a_crash_is_known_by_what_the_launcher_reports(text: str, cause: str, name: str) -> None:
    world = World()
    gone = {"state": "X", "gone_at": HUNG_SINCE}
    for _ in range(3):
        world.add(None, None, state="exited", process=gone)
    output = Output("n1", "1:1", "/job/log.txt", pids=(4000, 4010, 4020), log=parsed(text))
    snapshot = msgspec.structs.replace(world.snapshot(), outputs=(output,))
    best = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert (best.cause, [c.rank for c in best.culprits]) == (cause, [1])
    assert name in best.summary
    assert not any("times" in one.text for one in best.evidence)


def test_the_line_that_a_rank_printed_right_before_it_left_is_told() -> None:
    world = World()
    for _ in range(3):
        world.add(None, None, state="exited", process={"state": "X", "gone_at": HUNG_SINCE})
    text = "[default1]:ERROR lease has 0 samples left\n[default0]:INFO step 3\n"
    text += SUMMARY.format(status=4)
    output = Output("n1", "1:1", "/job/log.txt", pids=(4000, 4010, 4020), log=parsed(text))
    snapshot = msgspec.structs.replace(world.snapshot(), outputs=(output,))
    best = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert (best.cause, [c.rank for c in best.culprits]) == ("rank-exited", [1])
    assert "(the last that it printed: ERROR lease has 0 samples left)" in best.summary
    assert any(one.text == "its last line: ERROR lease has 0 samples left" for one in best.evidence)
