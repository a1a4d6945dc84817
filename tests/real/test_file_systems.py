"""Ranks that their file system holds up: no inodes, a quota used up, a server that is silent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from hangtop_probe.files import quotas
from hangtop_probe.proc import procfs
from support.launch import SUPPORT, Started, free_port
from support.places import NoPlaceError, silent_server, with_quotas, without_inodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.session.session import Update

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]
UID = os.getuid()


@contextmanager
def saving(how: str, *words: Path, gate: Path) -> Iterator[Started]:
    """A job whose rank 1 is held up there; the others wait for it."""
    port, script = free_port(), str(SUPPORT / "kernel_job.py")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DYING_GATE": str(gate)}
    gate.touch()
    with Started(sys.executable, script, "LAUNCH", how, *map(str, words), env=env) as started:
        yield started


def first(update: Update) -> Verdict | None:
    found = [one.verdicts[0] for one in update.diagnoses.values() if one.verdicts]
    return found[0] if found else None


def told(started: Started, wanted: str, cause: str = "disk-full") -> Verdict:
    """What is said first of a job, once that is this."""
    with Session(Options(hang_after=4.0, pids=(started.pid,)), diagnose) as session:

        def says(update: Update) -> bool:
            verdict = first(update)
            return verdict is not None and verdict.cause == cause and wanted in verdict.summary

        seen = session.wait(says, 90.0)
        assert seen is not None, session.latest and first(session.latest)
    verdict = first(seen)
    assert verdict is not None
    assert [one.rank for one in verdict.culprits] == [1]
    assert verdict.victims == (0, 2)
    return verdict


def test_no_inodes_are_left_where_there_is_space(tmp_path: Path) -> None:
    with (
        without_inodes(tmp_path) as point,
        saving("disk", point, gate=tmp_path / "gate") as started,
    ):
        assert shutil.disk_usage(point).free > 8 << 20
        verdict = told(started, f"no inodes, for one more file, are left on {point}")
        assert verdict.next_steps[0] == f"df -h {point}; df -i {point}"


def library(here: Path) -> str:
    """The double of quotactl."""
    built = here / "quotactl.so"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler of C")
    source = str(SUPPORT / "quotactl.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", built, source], check=True)
    return str(built)


def test_a_quota_is_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system and its options are real, the answer of the kernel is a double's."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    with ExitStack() as stack:
        try:
            point = stack.enter_context(with_quotas(tmp_path))
        except NoPlaceError as error:
            pytest.skip(str(error))
        places = [one for one in quotas.places(procfs.mounts("self")) if one.point == str(point)]
        assert [one.type for one in places] == [0, 1]
        # No quota is set here, whatever formats this kernel has: that is no error.
        assert quotas.used_up(places, [os.getpid()]) == []
        started = stack.enter_context(saving("limited", point, gate=tmp_path / "gate"))
        monkeypatch.setenv("LD_PRELOAD", library(tmp_path))
        monkeypatch.setenv("QUOTA", f"{places[0].device} {UID}")
        user = "root" if UID == 0 else str(UID)
        verdict = told(started, f"the quota of user {user} on {point} is used up")
        assert "(its limit is 20.0 GiB)" in verdict.summary
        assert verdict.next_steps[0] == f"quota -s -u {UID}"


def test_a_remote_file_system_is_named_with_its_server(tmp_path: Path) -> None:
    """Mounted for real by FUSE as sshfs is; its server answers until the file is read."""
    with ExitStack() as stack:
        try:
            point, end = stack.enter_context(silent_server(tmp_path, "ada@filer:/export"))
        except NoPlaceError as error:
            pytest.skip(str(error))
        words = (tmp_path / "members", point / "shard")
        started = stack.enter_context(saving("read", *words, gate=tmp_path / "gate"))
        stack.callback(end)
        verdict = told(started, f"{point}/shard", "io-wait")
        assert "filer" in verdict.summary
        assert "fuse.sshfs" in verdict.summary
