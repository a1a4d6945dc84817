"""What is kept of every process of the node."""

from __future__ import annotations

import subprocess
import sys

from hangtop_probe import facts, permission
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
