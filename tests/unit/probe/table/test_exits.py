"""How processes have ended that others have collected, by the kernel's word."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe.proc import procfs
from hangtop_probe.table.exits import Exits

if TYPE_CHECKING:
    from pathlib import Path

ENDS = {"exit 3": 3, "exit 0": 0, "kill -9 $BASHPID": -9, "kill -15 $BASHPID": -15}


def fields(pid: int, role: str = "rank") -> dict[int, dict[str, Any]]:
    stat = procfs.read_stat(pid)
    assert stat is not None
    return {pid: {"role": role, "start": stat.start}}


def kernel_tells() -> bool:
    return tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)


@pytest.mark.skipif(not kernel_tells(), reason="Linux keeps exit statuses from 6.15 on")
def test_the_status_of_a_strangers_child_is_known_after_it_was_collected(tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"until [ -e {go} ]; do sleep 0.02; done"
    starts = "".join(f"({wait}; {how}) & echo $!\n" for how in ENDS)
    pipe = subprocess.PIPE
    with subprocess.Popen(["bash", "-c", starts + "wait"], stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in ENDS]
        held = Exits()
        for pid in pids:
            held.follow(fields(pid))
        go.touch()
    assert [held.status(pid) for pid in pids] == list(ENDS.values())
    assert [held.status(pid) for pid in pids] == [None] * len(pids)


def test_who_is_another_process_by_now_is_not_held() -> None:
    held = Exits()
    (mine,) = fields(os.getpid()).values()
    held.follow({os.getpid(): {**mine, "start": mine["start"] - 1}})
    held.follow(fields(os.getppid(), "subprocess"))
    assert held._held == {}
