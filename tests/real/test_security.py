"""What docs/security.md claims, tried on real processes, as another user where that matters."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hangtop.cli import config
from hangtop.cli.arguments.arguments import in_file
from hangtop.cli.main import MODULES
from hangtop.keys.keymap import ACTIONS
from hangtop.terminal import clipboard
from hangtop_core.attach.connect import bundle
from hangtop_core.errors import UsageError
from hangtop_core.tools import prepare
from hangtop_hook import prompt, terminal
from hangtop_probe.cores import cores
from hangtop_probe.node import permission
from hangtop_probe.output import logs
from hangtop_probe.proc import procfs
from hangtop_probe.stacks import sources
from hangtop_probe.wire import cachedir, pieces
from hangtop_probe.wire.requests import Refused, Request
from hangtop_probe.wire.tools import Tools
from support import readonly_tour, stranger
from support.booted import Booted, hide_the_shared_paths
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real
WAITS = """
def all_reduce(tensor):
    work = open(sys.argv[1] + "/never", "rb")
def train():
    all_reduce(None)
train()
"""
RANK = f"""
import os, sys
os.write(1, b"ready")
sys.path.insert(0, "/x/torch/distributed")
exec(compile({WAITS!r}, "/x/site-packages/torch/distributed/distributed_c10d.py", "exec"))
"""
"""A rank that waits in what py-spy shows as a collective, without the seconds that torch takes."""
TRACED = (
    "ptrace,kill,tkill,tgkill,pidfd_send_signal,rt_sigqueueinfo,rt_tgsigqueueinfo,"
    "process_vm_writev,bind,listen"
)
_CALL = re.compile(r"^\d+ +(\w+)\((.*)$")


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A rank whose flight recorder could be asked for by a pipe, which nobody may write to."""
    os.mkfifo(tmp_path / "never")
    os.mkfifo(tmp_path / "fr_0.pipe")
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    environ |= {"MASTER_PORT": "1", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/fr_"}
    environ |= {"TORCH_FR_BUFFER_SIZE": "2000"}
    with subprocess.Popen(
        [sys.executable, "-c", RANK, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, **environ},
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.read(5) == b"ready"
            yield process
        finally:
            process.kill()


def calls(log: Path) -> list[tuple[str, str]]:
    """Names and arguments of system calls in what strace wrote."""
    found = (_CALL.match(line) for line in log.read_text(errors="replace").splitlines())
    return [(one[1], one[2]) for one in found if one]


@pytest.mark.timeout(600)  # half a minute, where there is not far too much to do
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_readonly_touches_no_rank_and_nothing_listens(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Every command and every key, with every system call of hangtop and all it starts."""
    pipe = os.open(tmp_path / "fr_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    log, folder = tmp_path / "calls", tmp_path / "out"
    folder.mkdir(mode=0o700)
    strace = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", f"trace={TRACED}", "-e", "signal=none"]
    tour = [sys.executable, readonly_tour.__file__, str(rank.pid), str(folder)]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(folder)}
    try:
        done = subprocess.run(
            [*strace, "-o", str(log), *tour],
            capture_output=True, text=True, timeout=2 * PATIENCE, check=False, env=environ,
            cwd=folder,  # a key writes a capture
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert os.read(pipe, 10) == b"", "nothing was written into the rank's pipe"
    finally:
        os.close(pipe)
    told = json.loads(done.stdout)
    assert told["said"] == {**told["said"], **REFUSED}
    assert told["said"]["diagnose"] in (10, 11), "it was looked at: it hangs"
    assert set(told["pressed"]) == {action.id for action in ACTIONS} - readonly_tour.LEAVING
    assert told["said"].keys() | ELSEWHERE >= {name for name in MODULES if name}
    made = calls(log)
    assert not [one for one in made if one[0] in ("bind", "listen", "process_vm_writev")]
    to_rank = re.compile(rf"\b{rank.pid}\b")
    assert not [one for one in made if to_rank.search(one[1])], "no signal to it, no ptrace"
    assert [name for name, _ in made if name == "ptrace"], "of doctor, on a process of its own"


REFUSED = dict.fromkeys(
    ("flight", "strace", "core", "debug", "dump --native", "diagnose --allow-pause",
     "flight --trigger", "flight --allow-inject"), 2,
)  # fmt: skip
"""Exit statuses of what --readonly refuses."""
ELSEWHERE = {
    "run",  # starts a job
    "demo",  # starts one, and then does as the others
    "nettest",  # opens ports: that is what it tests, see tests/real/test_nettest.py
    "config",
    "completion",
}
"""Commands that look at no rank."""


needs_stranger = pytest.mark.skipif(stranger.why_not() is not None, reason=stranger.why_not() or "")


@pytest.fixture
def place() -> Iterator[Path]:
    with stranger.open_place() as path:
        yield path


SWAP = """
import os, sys
cache = sys.argv[1]
os.rename(cache, cache + ".old")
for folder, _, names in os.walk(cache + ".old"):
    os.makedirs(folder.replace(".old", "", 1), exist_ok=True)
evil = os.path.join(cache, "hangtop", sys.argv[2])
os.makedirs(evil, exist_ok=True)
with open(os.path.join(evil, "py-spy"), "w") as file:
    file.write("#!/bin/sh\\ntouch %s/ran\\n" % os.path.dirname(cache))
os.chmod(os.path.join(evil, "py-spy"), 0o755)
print("swapped")
"""
"""Puts a py-spy of its own where that of the probe is."""


@needs_stranger
def test_nobody_can_swap_what_is_run_after_it_was_checked(place: Path) -> None:
    """The cache is to be in a directory that is another user's, who may rename what is in it."""
    theirs = stranger.owned(place / "theirs", 0o1777)
    node = Booted(theirs / "cache", hide_the_shared_paths(bundle.opening()))
    try:
        node.supply(node.message()["boot"]["missing"])
        said = node.message()["boot"]
        path = node.message()["hello"]["capabilities"]["py-spy"]["path"]
        key = cachedir.file_hash(str(bundle._py_spy()))
        swapped = stranger.does(SWAP, str(theirs / "cache"), key)
        assert said["done"]["probe"] == said["done"]["py-spy"] == "memory"
        assert said["why"] == f"{theirs} belongs to user id {stranger.UID}"
        assert path.startswith("/proc/")
        assert "swapped" in swapped, "the attack is real"
        # What is in memory is closed to others, too, and so is the probe.
        looks = (f"open('{path}', 'rb')", f"os.listdir('/proc/{node.process.pid}/fd')")
        looks += (f"os.kill({node.process.pid}, 15)",)
        for look in looks:
            assert "Error: [Errno" in stranger.does(f"import os; print({look})"), look
    finally:
        assert node.end() == 0


@needs_stranger
def test_a_link_on_the_way_to_the_cache_is_not_followed_twice(place: Path) -> None:
    """It leads to a good directory when it is checked, and elsewhere afterwards."""
    mine, theirs = place / "mine", stranger.owned(place / "theirs", 0o755)
    mine.mkdir(0o700)
    stranger.does(f"import os; os.symlink('{mine}', '{theirs}/way')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(theirs / "way"))
        assert cachedir.cache_base() == str(mine / "hangtop")


@needs_stranger
@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_a_core_is_written_into_nothing_that_another_user_has_laid(place: Path) -> None:
    """For every second there is a link to something precious, or a file that they can read."""
    victim = place / "victim"
    victim.write_text("precious")
    theirs = stranger.owned(place / "theirs", 0o777)
    with subprocess.Popen(["sleep", "1000"]) as target:
        try:
            now = int(time.time())
            names = [f"{theirs}/core.{target.pid}.{at}" for at in range(now, now + 300)]
            lay = f"os.symlink('{victim}', name) if int(name[-1]) % 2 else open(name, 'w')"
            stranger.does(f"import os\nfor name in {names}: {lay}")
            request = Request(
                {"id": 1, "op": "core", "pid": target.pid, "dir": str(theirs), "take": True},
                lambda *_: None,
            )
            with pytest.raises(Refused, match="File exists"):
                cores.handle(request, Tools(), permission.rights())
            assert victim.read_text() == "precious"
            assert not any(os.lstat(name).st_size for name in names if not os.path.islink(name))
            assert len(list(theirs.iterdir())) == len(names), "nothing else was left there"
        finally:
            target.kill()


LISTEN = """
import os, socket, sys, time
end = socket.socket(socket.AF_UNIX); end.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777)
end.listen()
print("listens"); time.sleep(60)
"""
CALL = """
import socket, sys, time
end = socket.socket(socket.AF_UNIX)
try: end.connect(sys.argv[1]); print("called"); print(repr(end.recv(100)))
except OSError as error: print(error)
"""


@needs_stranger
def test_a_prompt_is_given_to_nobody_else_and_taken_from_nobody_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends of `hangtop debug`, against a user who was there first."""
    folder = stranger.owned(place / "sockets", 0o777)
    path = folder / "debug-7.sock"
    monkeypatch.setattr(prompt, "socket_path", lambda pid, uid: str(path))
    with stranger.begin(LISTEN, str(path)) as other:
        try:
            assert other.stdout
            assert other.stdout.readline() == "listens\n"
            assert prompt.connect(7) is None, "the directory is somebody else's"
            os.chown(folder, os.getuid(), -1)
            folder.chmod(0o700)
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(str(path))
                assert prompt.peer(end)[1] == stranger.UID
            assert prompt.connect(7) is None, "who listens is somebody else"
        finally:
            other.kill()
    path.unlink()
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as door:
        terminal._bind(door, str(path))
        assert path.stat().st_mode & 0o077 == 0
        assert "Permission denied" in stranger.does(CALL, str(path))
        path.chmod(0o777)
        with stranger.begin(CALL, str(path)) as other:
            try:
                assert other.stdout
                assert other.stdout.readline() == "called\n"
                assert terminal._let_in(door, os.getpid(), 0.2, prompt.peer) is None
                assert other.stdout.readline() == "b''\n", "nothing was said to it"
            finally:
                other.kill()


@needs_stranger
def test_what_decides_what_is_run_is_the_user_s_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config file, whose `command` and `init` are run, and the directory of a prepared run."""
    file = place / "config.toml"
    file.write_text("init = 'touch x'\n")
    assert config.read(file, in_file()) == {"init": "touch x"}
    file.chmod(0o666)
    with pytest.raises(UsageError, match="others can write to it"):
        config.read(file, in_file())
    file.chmod(0o644)
    os.chown(file, stranger.UID, -1)
    with pytest.raises(UsageError, match=f"belongs to user id {stranger.UID}"):
        config.read(file, in_file())

    monkeypatch.chdir(place)
    mine = place / "mine"
    mine.mkdir(0o700)
    theirs = stranger.owned(place / "theirs", 0o777)
    stranger.does(f"import os; os.symlink('{mine}', '{theirs}/run')")
    assert prepare.make(theirs / "run", prepare.Parts()) == mine, "never by the link again"
    for taken in (theirs / "new", stranger.owned(place / "sticky", 0o1777) / "new"):
        with pytest.raises(UsageError, match="can be changed by others"):
            prepare.make(taken, prepare.Parts())


@needs_stranger
def test_copying_writes_to_no_file_that_another_user_chose(place: Path) -> None:
    victim = place / "victim"
    victim.write_text("precious")
    theirs = stranger.owned(place / "theirs", 0o777)
    bait = theirs / "hangtop" / "copied.txt"
    stranger.does(f"import os; os.mkdir('{bait.parent}'); os.symlink('{victim}', '{bait}')")
    told = clipboard.copy("x", lambda _: None, environ={}, folder=theirs / "hangtop")
    assert f"belongs to user id {stranger.UID}" in told
    (place / "own").mkdir(0o700)
    (place / "own" / "copied.txt").symlink_to(victim)
    assert "no file" in clipboard.copy("x", lambda _: None, environ={}, folder=place / "own")
    assert victim.read_text() == "precious"


def test_nothing_is_imported_from_beside_the_probe_that_others_put_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it lies is the first place in which Python looks for any module."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    source = str(bundle.PACKAGE)
    shutil.copytree(source, place / "hangtop_probe")
    probe = pieces.Probe({"hash": cachedir.tree_hash(source), "path": str(place)})
    place.chmod(0o755)
    assert probe.find(None)
    place.chmod(0o1777)  # like /tmp: nobody can replace ours, anybody can add a json.py
    assert not probe.find(None)


LIES = """
import os, sys, time
os.dup2(os.open(sys.argv[1], os.O_PATH), 1)
time.sleep(60)
"""


@needs_stranger
def test_root_reads_for_a_process_nothing_that_it_may_not_read(place: Path) -> None:
    """A program calls its files what it wants, and may open any file by its name alone."""
    closed, inner = place / "closed.py", place / "inner"
    for path in (closed, inner / "open.py", place / "open.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("key = 1\n")
        os.utime(path, (1, 1))
    closed.chmod(0o600)
    inner.chmod(0o700)
    theirs = stranger.owned(place / "theirs", 0o755)
    for name, to in (("way", inner), ("far", place)):
        stranger.does(f"import os; os.symlink('{to}', '{theirs}/{name}')")
    with stranger.begin(LIES, str(closed)) as rank:
        try:
            assert wait_until(lambda: os.readlink(f"/proc/{rank.pid}/fd/1") == str(closed))
            mounts = [procfs.Mount(1, "8:1", "/", "ext4", "a")]

            def told(path: Path) -> str | None:
                return sources.line(rank.pid, str(path), 1, mounts)

            assert told(place / "open.py") == told(theirs / "far" / "open.py") == "key = 1"
            hidden = (closed, inner / "open.py", theirs / "way" / "open.py")
            assert [told(path) for path in (*hidden, theirs / "far" / "closed.py")] == [None] * 4
            link = f"/proc/{rank.pid}/fd/1"
            assert logs.read(link, 100, {}, set(), linked=True, uid=None) is None
        finally:
            rank.kill()
