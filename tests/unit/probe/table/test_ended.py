"""Ranks that had ended before anybody looked: numbered where their place is certain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.node import permission
from hangtop_probe.proc import procfs
from hangtop_probe.table import ended
from hangtop_probe.table.entry import Entry
from hangtop_probe.table.facts import Facts
from hangtop_probe.table.table import Table
from support.processes import state, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START = """
import os, sys
for rank in range(3):
    told = {"RANK": str(rank + 3), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
    told |= {"WORLD_SIZE": "6", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    do = "os.kill(os.getpid(), 7)" if rank == 1 else "signal.pause()"
    argv = [sys.executable, "-S", "-c", "import os, signal; " + do]
    os.posix_spawn(sys.executable, argv, {**os.environ, **told})
sys.stdin.read()
"""


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Three ranks of one that waits for none of them; the second is a zombie by SIGBUS."""
    argv = [sys.executable, "-S", "-c", START]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        try:
            assert wait_until(lambda: len(children.read_text().split()) == 3)
            pids = [int(pid) for pid in children.read_text().split()]
            assert wait_until(lambda: state(pids[1]) == "Z")
            assert wait_until(lambda: all(procfs.environ(pids[i]) for i in (0, 2)))
            yield pids
        finally:
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            parent.kill()


def test_a_rank_that_crashed_before_anybody_looked_is_known_by_its_place(pids: list[int]) -> None:
    table = Table(permission.rights())
    table.scan()
    found = table.processes()
    assert [found[pid]["rank"] for pid in pids] == [3, 4, 5]
    assert found[pids[1]]["state"] == "Z"
    assert found[pids[1]]["exit_code"] == -signal.SIGBUS
    assert found[pids[1]]["env"]["LOCAL_RANK"] == "1"
    assert "before it was seen" in found[pids[1]]["denied"][0]
    assert found[pids[0]]["env"]["MASTER_PORT"] == found[pids[1]]["env"]["MASTER_PORT"]


def entry(pid: int, ppid: int, rank: int | None, size: int = 3, **more: str) -> Entry:
    """A process in the table: a rank that can be read, or with None a zombie."""
    state = "Z" if rank is None else "S"
    made = Entry(procfs.Stat(pid, "python", state, ppid, 0, 0, 1, pid, 0, 0))
    told = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": "1", **more}
    made.facts = Facts(environ=None if rank is None else told)
    return made


def number(*entries: Entry) -> Mapping[int, str | None]:
    table = {
        one.stat.pid: one for one in (Entry(procfs.Stat(1, "init", "S", 0, *[0] * 6)), *entries)
    }
    ended.fill(table)
    zombies = (one for one in entries if one.stat.state == "Z")
    return {one.stat.pid: (one.facts.environ or {}).get("RANK") for one in zombies}


def test_only_zombies_whose_place_is_certain_are_numbered() -> None:
    assert number(entry(5, 1, 0), entry(6, 1, None), entry(7, 1, 2)) == {6: "1"}
    assert number(entry(5, 1, None), entry(6, 1, 1), entry(7, 1, None)) == {5: "0", 7: "2"}
    # One more than there are ranks, one less, and one that is not in its place.
    assert number(entry(5, 1, 0), entry(6, 1, None), entry(7, 1, None, 4), entry(8, 1, 2)) == {
        6: None,
        7: None,
    }
    assert number(entry(5, 1, 0), entry(6, 1, None)) == {6: None}
    assert number(entry(5, 1, 2), entry(6, 1, None), entry(7, 1, 0)) == {6: None}
    # The rank with that number lives elsewhere; workers of a rank; ranks of two jobs.
    here = (entry(5, 1, 0), entry(6, 1, None), entry(7, 1, 2))
    assert number(*here, entry(9, 8, 1)) == {6: None}
    assert number(entry(4, 1, 0, 2), entry(5, 4, 0, 2), entry(6, 4, None)) == {6: None}
    assert number(entry(5, 1, 0), entry(6, 1, None), entry(7, 1, 2, MASTER_PORT="2")) == {6: None}


def test_of_a_script_that_tells_no_local_size_and_beside_the_resource_tracker() -> None:
    ranks = [entry(pid, 1, rank, LOCAL_RANK=str(rank)) for pid, rank in ((6, 0), (8, 2))]
    tracker = entry(5, 1, 0, LOCAL_RANK="0")
    script = "from multiprocessing.resource_tracker import main;main(3)"
    tracker.facts = Facts(("/usr/bin/python3", "-c", script), tracker.facts.environ)
    assert number(tracker, ranks[0], entry(7, 1, None), ranks[1]) == {7: "1"}
