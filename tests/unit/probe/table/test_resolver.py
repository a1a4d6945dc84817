"""Which processes are looked into for ranks that tell nothing by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest

from hangtop_probe.node import permission
from hangtop_probe.ranks import numbering
from hangtop_probe.table import mapped as resolver_mapped
from hangtop_probe.table import table


def test_a_process_whose_memory_is_locked_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So while a page fault waits for a file server, and another thread for the lock."""
    given_back = threading.Event()
    monkeypatch.setattr(resolver_mapped.procfs, "read_all", lambda *_: given_back.wait())
    try:
        assert not resolver_mapped.has_torch(os.getpid())
    finally:
        given_back.set()


def test_who_has_mapped_torch_may_be_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resolver_mapped.procfs, "read_all", lambda *_: b"7f00-7f01 /x/libtorch_cpu.so"
    )
    assert resolver_mapped.has_torch(os.getpid())


@pytest.mark.parametrize(
    ("mapped", "taken"), [(b"7f00-7f01 /x/libpython3.11.so.1.0", True), (b"", False)]
)
def test_a_program_that_embeds_python_is_taken_for_one_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, mapped: bytes, taken: bool
) -> None:
    monkeypatch.setattr(resolver_mapped.procfs, "read_all", lambda *_: mapped)
    monkeypatch.setattr(table, "_STARTED_S", 0.0)
    monkeypatch.setattr(table, "_SAMPLED_S", 0.0)
    # No child of this process, which would be a tool of the probe.
    script = "/bin/sleep 60 >/dev/null & echo $!"
    pid = int(subprocess.run(["/bin/sh", "-c", script], stdout=-1, check=True).stdout)
    try:
        processes = table.Table(permission.rights())
        processes.scope(False, frozenset([pid]))
        processes.scan()
        found = processes.processes()[pid]
    finally:
        os.kill(pid, signal.SIGKILL)
    assert (found["rank_source"] == numbering.NAMED) is taken
