"""Ranks that wait for a file server that is gone: by what Linux 6.1 said of real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import Descriptor, FileServer
from hangtop_core.model.snapshot import DescriptorTable
from support import situations
from support.build import HUNG_SINCE, NOW, World
from support.situations import user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis

GONE = FileServer("/mnt/data", "nfs4", "filer", "10.88.0.2:2049", "SYN_SENT", 1)
UP = FileServer("/mnt/home", "nfs4", "homes", "10.88.0.3:2049", "ESTABLISHED")
FILE = Descriptor(
    -1, "file", "/mnt/data/shard-1.bin", mount="/mnt/data", fstype="nfs4", server="filer"
)
LOCK = Descriptor(
    11, "file", "/mnt/data/lock", "rw", mount="/mnt/data", fstype="nfs4", server="filer"
)
MUNMAP = ("D", "rpc_wait_bit_killable", "munmap", None, None)
STAT = ("D", "rpc_wait_bit_killable", "newfstatat", None, None)
SAVES = ("D", "rpc_wait_bit_killable", "openat", None, None)
SETLK = ("S", "wait_woken", "fcntl", 11, None)


def judged(
    stack: situations.Stack,
    facts: situations.Facts,
    table: DescriptorTable,
    moved_at: float = HUNG_SINCE,
) -> Diagnosis:
    world = World()
    world.waiters(3)
    world.add(stack, facts, descriptors=table, moved_at=moved_at)
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None))


def test_a_file_that_is_mapped_is_told_by_the_server_that_does_not_answer() -> None:
    table = DescriptorTable(NOW, (), servers=(UP, GONE))
    verdict = judged(user("decode", 37), MUNMAP, table).verdicts[0]
    assert (verdict.cause, verdict.culprits[0].rank) == ("io-wait", 3)
    assert "the server of /mnt/data (nfs4, filer) does not answer" in verdict.summary
    assert "homes" not in str(verdict)
    assert any("10.88.0.2:2049 is in SYN_SENT" in one.text for one in verdict.evidence)
    assert any("timeout 5 stat /mnt/data" in step for step in verdict.next_steps)


def test_a_checkpoint_to_a_server_that_is_gone_is_no_slow_one() -> None:
    silent = DescriptorTable(NOW, (), opening=FILE, servers=(GONE,))
    verdict = judged(situations.SAVE, SAVES, silent).verdicts[0]
    assert verdict.cause == "io-wait"
    for part in ("writes a checkpoint", "state D", "/mnt/data/shard-1.bin", "filer"):
        assert part in verdict.summary
    answers = DescriptorTable(NOW, (), opening=FILE, servers=(UP,))
    assert judged(situations.SAVE, SAVES, answers).verdicts[0].cause == "checkpoint-slow"


@pytest.mark.parametrize(("server", "state"), [(GONE, "hung"), (UP, "progressing")])
def test_to_wake_up_and_ask_again_is_no_progress(server: FileServer, state: str) -> None:
    table = DescriptorTable(NOW, (), opening=FILE, servers=(server,))
    assert judged(user("scan", 40), STAT, table, moved_at=NOW - 2.0).state == state


def test_a_lock_that_another_node_holds() -> None:
    verdict = judged(user("claim", 28), SETLK, DescriptorTable(NOW, (LOCK,))).verdicts[0]
    assert (verdict.cause, verdict.culprits[0].rank) == ("file-lock", 3)
    assert "a process of another node" in verdict.summary
    assert "filer knows whose" in verdict.summary
