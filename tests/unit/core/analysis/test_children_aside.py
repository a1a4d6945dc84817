"""Children that a rank does not wait for: servers and exporters beside the program it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.model.descriptors import Descriptor, DescriptorTable, Socket
from hangtop_core.model.meters import Meters
from hangtop_core.model.snapshot import Thread
from support.build import HUNG_SINCE, NOW, World
from support.situations import CHILD, PIPE_READ, WAITPID
from support.verdicts import hung, judged

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank
    from support.situations import Facts

POLLS = ("S", "poll_schedule_timeout", "poll", None, None)
RUNS = ("R", None, None, None, None)
CURL, EXPORTER, CALLED = 6001, 6002, 6003
GATEWAY = "10.0.0.9:443"


def beside(
    world: World,
    *,
    waits_for: int | None = CURL,
    curl: Facts = POLLS,
    exporter: Facts = RUNS,
    words: tuple[str, ...] = ("python3", "-m", "http.server"),
    send_queue: int = 2812928,
    prints: str = "/log",
    **moved: Any,
) -> Rank:
    """A rank in wait4 for curl, with an exporter beside it, which has called something itself."""
    facts = (*WAITPID[:4], None if waits_for is None else str(waits_for))
    rank = world.add(CHILD, facts)
    pairs = []
    for pid, ppid, what, command in (
        (CURL, rank.process.pid, curl, ("curl", "-T", "step5.pt")),
        (EXPORTER, rank.process.pid, exporter, words),
        (CALLED, EXPORTER, POLLS, ("nvidia-smi", "-l")),
    ):
        more = {"cmdline": command, "comm": command[0], "outputs": (prints, "/log")}
        made = world.process(pid, what, ppid=ppid, role="subprocess", **more)
        # with more than one thread, as servers have
        threads = made.threads[:1] if pid == CURL else made.threads[:2]
        pairs.append((msgspec.structs.replace(made, threads=threads), None))
    socket = Socket("tcp", "ESTABLISHED", "10.0.0.1:4000", GATEWAY, send_queue=send_queue)
    tables = {
        CURL: DescriptorTable(NOW, (Descriptor(5, "socket", "socket:[9]", "rw", socket=socket),))
    }
    world.give_children(rank, pairs, tables=tables)
    known = {
        "child_moved_at": dict.fromkeys((CURL, EXPORTER, CALLED), NOW),
        "child_cpu_share": dict.fromkeys((CURL, EXPORTER, CALLED), 0.001),
    }
    world.ranks[-1] = msgspec.structs.replace(world.ranks[-1], **{**known, **moved})
    return world.ranks[-1]


@pytest.mark.parametrize("prints", ["/log", "pipe:[3]"])
def test_a_server_that_idles_is_no_progress_of_the_program_that_is_waited_for(
    prints: str,
) -> None:
    world = World()
    world.waiters(2)
    beside(world, prints=prints, child_io_moved_at={EXPORTER: NOW, CALLED: NOW})
    verdict = hung(world)
    assert verdict.cause == "child-process-wait"
    told = "for a program it started: pid 6001 'curl -T step5.pt' (state S), which waits in poll, "
    assert f"{told}connected to {GATEWAY} (2.7 MiB for it are not acknowledged);" in verdict.summary
    assert not any("pid 6002" in one.text or "pid 6003" in one.text for one in verdict.evidence)


@pytest.mark.parametrize(
    "case",
    [
        {"child_cpu_share": {CURL: 0.001, EXPORTER: 0.5, CALLED: 0.001}},
        {"child_cpu_share": {CURL: 0.001, EXPORTER: 0.001, CALLED: 0.5}},
        {"child_much_at": {EXPORTER: NOW}},
        {"child_io_moved_at": {CURL: NOW}},
        # which one is waited for is not known, or it may do what that one waits for
        {"waits_for": None},
        {"waits_for": 77},
        {"words": ("python3", "-u", "train.py")},
        {"words": ("python3", "-c", "from multiprocessing ...", "--multiprocessing-fork")},
        {"curl": PIPE_READ, "prints": "pipe:[3]"},
    ],
)
def test_what_works_beside_it_may_do_what_it_waits_for(case: dict[str, Any]) -> None:
    world = World()
    world.waiters(2)
    beside(world, **case)
    assert judged(world).state == "progressing"


def test_while_it_gets_on_only_the_program_that_is_waited_for_is_told() -> None:
    world = World()
    world.waiters(2, moved_at=HUNG_SINCE)
    beside(world, send_queue=0, child_io_moved_at={CURL: NOW})
    (verdict, *_) = judged(world).verdicts
    assert verdict.cause == "long-phase"
    assert f"which waits in poll, connected to {GATEWAY}), and gets on" in verdict.summary
    assert "6002" not in verdict.summary


@pytest.mark.parametrize(
    ("call", "argument", "child"),
    [("wait4", "77", 77), ("wait4", None, None), ("futex", "0x77", None), ("wait4", "0x7", None)],
)
def test_the_child_that_a_thread_waits_for(
    call: str, argument: str | None, child: int | None
) -> None:
    assert Thread(1, "a", "S", None, call, None, argument).child == child


def pausing(read: int, *, other: str = "sleep", seconds: str = "2", age: float = 60.0) -> World:
    """A rank that waits for a shell, of which two sleeps were met: one has ended."""
    world = World()
    world.waiters(2)
    rank = world.add(CHILD, (*WAITPID[:4], "6001"))
    shell = world.process(
        6001,
        WAITPID,
        role="subprocess",
        comm="bash",
        cmdline=("bash", "convert.sh"),
        meters=Meters(read_bytes=read, write_bytes=0),
        started_at=NOW - age,
    )
    pairs = [(msgspec.structs.replace(shell, threads=shell.threads[:1]), None)]
    for pid, comm, gone in ((6002, other, NOW - 1), (6003, "sleep", None)):
        told = {"comm": comm, "cmdline": (comm, seconds), "gone_at": gone}
        meters, since = Meters(read_bytes=6976, write_bytes=0), NOW - 3
        more = {"ppid": 6001, "role": "subprocess", "meters": meters, "started_at": since}
        made = world.process(pid, POLLS, **more, **told)
        pairs.append((msgspec.structs.replace(made, threads=made.threads[:1]), None))
    world.give_children(rank, pairs)
    moved = {"child_moved_at": dict.fromkeys((6001, 6003), NOW - 0.1)}
    moved["child_cpu_share"] = dict.fromkeys((6001, 6003), 0.001)
    world.ranks[-1] = msgspec.structs.replace(world.ranks[-1], **moved)
    return world


def test_a_shell_that_only_sleeps_between_two_looks_does_not_get_on() -> None:
    verdict = hung(pausing(8000 + 30 * 6976))
    assert verdict.cause == "child-process-wait"
    assert "pid 6001 'bash convert.sh' (state S)" in verdict.summary


@pytest.mark.parametrize(
    "case",
    [
        {"read": 8000 + 60 * 6976},  # as much again: a program too short to be met
        {"read": 0, "other": "rsync"},
        {"read": 0, "seconds": "infinitely"},
        {"read": 8000 + 30, "age": 4.0},  # as little as nothing tells yet
    ],
)
def test_a_shell_that_runs_programs_between_its_sleeps_gets_on(case: dict[str, Any]) -> None:
    assert judged(pausing(**case)).state == "progressing"
