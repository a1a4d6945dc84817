"""What is kept of every process of the node."""

from __future__ import annotations

import subprocess
import sys

from hangtop_probe.node import permission
from hangtop_probe.table import facts
from hangtop_probe.wire.guard import Guard
from support.processes import wait_until


def test_of_a_process_only_what_may_be_told_is_kept_and_little_of_it() -> None:
    env = {"RANK": "3", "MASTER_ADDR": "n1", "MY_DATA": "x" * 100_000, "NCCL_LONG": "y" * 100_000}
    argv = [sys.executable, "-I", "-S", "-c", "input()", "z" * 120_000]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=env) as child:
        assert wait_until(lambda: b"z" in facts.procfs.read(f"/proc/{child.pid}/cmdline"))
        found = facts.read_facts(child.pid, permission.rights())
        child.communicate()
    assert found.environ == {
        "RANK": "3",
        "MASTER_ADDR": "n1",
        "NCCL_LONG": "y" * facts.MAX_VALUE,
    }
    assert 1000 < sum(map(len, found.cmdline)) <= facts.MAX_CMDLINE


def test_who_joined_a_group_is_told_by_what_it_has_set_since_its_start() -> None:
    """As a rank that a program started with its own RANK, and that counts them on."""
    env = {"RANK": "1", "WORLD_SIZE": "2", "OWN": "x"}
    program = "import os; os.environ['RANK'] = '9'; print(flush=True); input()"
    argv = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, env=env) as child:
        assert child.stdout is not None
        child.stdout.readline()
        known = facts.read_facts(child.pid, permission.rights())
        found = facts.joined(known, child.pid, Guard())
        again = facts.joined(found, child.pid, Guard())
        child.communicate(b"\n")
    assert known.environ == {"RANK": "1", "WORLD_SIZE": "2"}
    assert found.environ == {"RANK": "9", "WORLD_SIZE": "2"}
    assert (known.rank_at_start, found.rank_at_start) == (None, (1, "RANK"))
    assert again.environ == found.environ
