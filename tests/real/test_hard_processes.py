"""A rank with 10,000 threads, as many descriptors, a large environment and hostile names."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.commands.files import show
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import MOST_READ
from hangtop_core.session.session import Options, Session
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_core.model.updates import Update

pytestmark = pytest.mark.real
THREADS = 10_000
DESCRIPTORS = min(100_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100)
"""A limit that only another machine, or more rights, would raise."""
HOSTILE = "\x1b[2J\x1b]0;title\x07\nnew line\r宽e\u0301\u202e\udcff\udc9b31m"
"""What clears screens, sets titles, begins lines, takes two columns or none, turns text around,
and is no UTF-8."""
RANK = f"""
import _thread, ctypes, os, resource, sys, time
name = os.fsencode(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]) + 90,) * 2)
os.chdir(os.fsencode(sys.argv[3]))
ctypes.CDLL(None).prctl(15, name[:15], 0, 0, 0)
kept = [os.open(name, os.O_CREAT | os.O_WRONLY)]
os.dup2(kept[0], 1)
os.write(1, name * 3)
kept += [os.open("/dev/null", os.O_RDONLY) for _ in range(int(sys.argv[2]))]
_thread.stack_size(64 << 10)
lock = _thread.allocate_lock(); lock.acquire()
for _ in range({THREADS} - 1): _thread.start_new_thread(lock.acquire, ())
os.write(2, b"ready")
time.sleep(100000)
"""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = os.fsencode(tmp_path_factory.mktemp("hard")) + b"/" + os.fsencode(HOSTILE)
    os.mkdir(folder)
    # What tells its rank stands behind a megabyte of other variables.
    environ = {f"LARGE{i}": "x" * 100_000 for i in range(11)} | {"PATH": os.environ["PATH"]}
    environ |= {"ESCAPE": HOSTILE, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    environ |= {"MASTER_ADDR": HOSTILE, "MASTER_PORT": "1"}
    argv = [sys.executable, "-c", RANK, HOSTILE, str(DESCRIPTORS), folder]
    with subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE) as child:
        assert child.stderr
        try:
            assert child.stderr.read(5) == b"ready"
            yield child.pid
        finally:
            child.kill()


COVERED = """
set -e
python=$1; covered=$2; pid=$3
mount -t tmpfs none "$covered"
"$python" -c 'import os, sys
for i in range(100_000): os.symlink("/dev/null", f"{sys.argv[1]}/{i}")' "$covered"
mount --bind "$covered" "/proc/$pid/fd"
exec "$python" -m hangtop files 0 --pid "$pid"
"""
"""Links to 100,000 files in the place of a process's own, in a mount namespace: a double for more
descriptors than this machine lets a process have."""


def test_a_hundred_thousand_descriptors_are_counted_and_thousands_read(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounts need root")
    environ = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    argv = ["unshare", "--mount", "sh", "-c", COVERED, "sh", sys.executable, str(tmp_path)]
    rank = [sys.executable, "-c", "print(flush=True); import time; time.sleep(1000)"]
    with subprocess.Popen(rank, env=environ, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            done = subprocess.run(
                [*argv, str(child.pid)], capture_output=True, text=True, timeout=PATIENCE
            )
        finally:
            child.kill()
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert f"{MOST_READ} of " in head
    assert len(rows) >= MOST_READ


def seen(update: Update) -> bool:
    return any(rank.sample is not None for job in update.snapshot.jobs for rank in job.ranks)


def test_it_is_read_within_bounds_and_its_names_do_no_harm(
    rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if len(os.listdir(f"/proc/{rank}/task")) < THREADS:
        pytest.skip("this machine does not let a process have 10,000 threads")
    with Session(Options(pids=(rank,)), diagnose) as session:
        update = session.wait(seen, PATIENCE)
        assert update is not None, session.latest
        (found,) = update.snapshot.jobs[0].ranks
        assert found.rank == 0, "it stands behind a megabyte of environment"
        assert len(found.process.threads) == 512
        assert found.sample is not None
        assert found.sample.failure is not None
        assert found.sample.failure.kind == "unsupported", found.sample.failure
        assert f"it has {THREADS} threads" in found.sample.failure.text
        name = update.snapshot.nodes[0].name
        table = session.descriptors(name, [rank]).result(PATIENCE)[rank]
        assert table is not None
        assert len(table.descriptors) == min(MOST_READ, DESCRIPTORS + 4)
        assert update.snapshot.nodes[0].state == "ready"
        assert not update.snapshot.nodes[0].noise
        capsys.readouterr()
        show(found, table, {}, name, as_json=False)
        said = capsys.readouterr().out
        if found.process.fd_count and found.process.fd_count > MOST_READ:
            assert f"{MOST_READ} of {found.process.fd_count} descriptors" in said
        assert "new line" in said
        assert not CONTROL.search(said.replace("\n", "")), said
        assert "\nnew line" not in said
