"""What jobs of the table need around them, and what happens to them from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import places as kernel
from support.launch import free_port
from support.processes import (
    PATIENCE,
    children,
    command_line,
    environment,
    parent,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


KEPT = Path(__file__).parent / "jobs/kept"
NETWORK = KEPT / "network"
"""What jobs meet there: a store of nobody's, a proxy."""


@dataclass(frozen=True)
class Place:
    """Somewhere to run a job."""

    environment: dict[str, str]
    release: Callable[[], None] = lambda: None
    """Called before the job is killed: what is frozen cannot be."""
    prefix: tuple[str, ...] = ()
    """A command that runs the job's, which follows it, in this place."""


@contextmanager
def limited(here: Path, port: int) -> Iterator[Place]:
    """A memory cgroup with little memory, in PLACE."""
    with kernel.limited() as group:
        yield Place({"PLACE": str(group)})


@contextmanager
def cramped(here: Path, port: int) -> Iterator[Place]:
    """A disk in PLACE, of which members of DISK read slowly; those of ROOM have little memory."""
    with (
        kernel.limited(80 << 20) as room,
        kernel.slow_disk(here, 24 << 20, "read") as (point, members, limit),
    ):
        told = {"PLACE": str(point), "ROOM": str(room / "cgroup.procs"), "DISK": str(members)}
        yield Place(told, lambda: limit(0))


@contextmanager
def quota(here: Path, port: int) -> Iterator[Place]:
    """A cgroup that may use a fiftieth of a core, in PLACE."""
    with kernel.quota(0.02) as group:
        yield Place({"PLACE": str(group)})


@contextmanager
def small_disk(here: Path, port: int) -> Iterator[Place]:
    """A file system with hardly any room, in PLACE."""
    with kernel.small_disk(here) as point:
        yield Place({"PLACE": str(point)})


@contextmanager
def frozen_disk(here: Path, port: int) -> Iterator[Place]:
    """A file system that takes no writes, in PLACE."""
    with kernel.frozen_disk(here) as disk:
        yield Place({"PLACE": str(disk.point)}, disk.thaw)


@contextmanager
def slow_disk(here: Path, port: int) -> Iterator[Place]:
    """A file system that takes a megabyte a second from the job, in PLACE."""
    with kernel.slow_disk(here, 1 << 20) as (point, members, limit):
        enter = f'echo $$ >"{members}"; exec "$@"'
        yield Place({"PLACE": str(point)}, lambda: limit(0), ("sh", "-c", enter, "sh"))


@contextmanager
def sync_disk(here: Path, port: int) -> Iterator[Place]:
    """A file system in PLACE where each write waits for a disk of half a megabyte a second."""
    with kernel.slow_disk(here, 1 << 19) as (point, members, limit):
        subprocess.run(["mount", "-o", "remount,sync", str(point)], check=True)
        enter = f'echo $$ >"{members}"; exec "$@"'
        yield Place({"PLACE": str(point)}, lambda: limit(0), ("sh", "-c", enter, "sh"))


def _as_root() -> None:
    if os.geteuid() != 0:
        raise kernel.NoPlaceError("namespaces need root")


@contextmanager
def small_shm(here: Path, port: int) -> Iterator[Place]:
    """A container's /dev/shm, in which there is hardly any room."""
    _as_root()
    enter = 'mount -t tmpfs -o size=4m none /dev/shm && exec "$@"'
    yield Place({}, prefix=("unshare", "--mount", "sh", "-c", enter, "sh"))


@contextmanager
def nowhere(here: Path, port: int) -> Iterator[Place]:
    """A network of its own, whose only way out leads to nobody."""
    _as_root()
    enter = (
        "ip link set lo up && ip link add wire type veth peer name end && ip link set wire up && "
        "ip link set end up && ip addr add 10.9.0.2/24 dev wire && "
        "ip neigh add 10.9.0.1 lladdr 02:00:00:00:00:99 nud permanent dev wire && "
        'ip route add default via 10.9.0.1 && exec "$@"'
    )
    yield Place({}, prefix=("unshare", "--net", "sh", "-c", enter, "sh"))


@contextmanager
def _beside(
    argv: list[str], ready: Callable[[], bool], **how: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A program beside the job, from when it is ready until the job is over."""
    with subprocess.Popen(argv, **how) as program:
        try:
            assert wait_until(ready), argv
            yield program
        finally:
            program.kill()


@contextmanager
def own_network(here: Path, port: int) -> Iterator[Place]:
    """A network of its own, which leads nowhere, and has a firewall of its own."""
    _as_root()
    enter = 'ip link set lo up && exec "$@"'
    yield Place({}, prefix=("unshare", "--net", "sh", "-c", enter, "sh"))


@contextmanager
def silent_program(here: Path, port: int) -> Iterator[Place]:
    """A program that is no store has the master's port, and never says a word."""
    script = f"import socket; s = socket.create_server(('127.0.0.1', {port})); input()"
    argv = [sys.executable, "-c", script]
    with _beside(argv, lambda: _listens(port), stdin=subprocess.PIPE):
        yield Place({})


def _listens(port: int) -> bool:
    return f":{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()


@contextmanager
def freezer(here: Path, port: int) -> Iterator[Place]:
    """A cgroup that can be frozen; its control file in PLACE."""
    with kernel.freezer() as (control, thaw):
        yield Place({"PLACE": str(control)}, thaw)


@contextmanager
def web_server(here: Path, port: int) -> Iterator[Place]:
    """A program that is no store listens on the master's port."""
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    # Until it listens the job's own store may have the port.
    with _beside(argv, lambda: _listens(port), cwd=here, stderr=subprocess.DEVNULL):
        yield Place({})


@contextmanager
def _store_of_others(
    script: str, here: Path, port: int, says: bytes
) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's program with a store on a port, once it says so."""
    log = here / "others.txt"
    argv = [sys.executable, str(KEPT / script), "127.0.0.1", str(port)]
    with log.open("wb") as out:
        ready = partial(_says, log, says)
        with _beside(argv, ready, stdout=out, stderr=out) as program:
            yield program


def _says(log: Path, word: bytes) -> bool:
    return word in log.read_bytes()


@contextmanager
def suspended_job(here: Path, port: int) -> Iterator[Place]:
    """An older job has the master's port, and was suspended by Ctrl-Z in its terminal."""
    with _store_of_others("network/foreign_store.py", here, port, b"serving") as older:
        older.send_signal(signal.SIGSTOP)
        yield Place({})


@contextmanager
def hub(here: Path, port: int) -> Iterator[Place]:
    """A program of somebody else's has a working store on the master's port."""
    with _store_of_others("joining/hub.py", here, port, b"ready"):
        yield Place({})


@contextmanager
def _mirror(mode: str, mebibytes: int) -> Iterator[Place]:
    port = free_port()
    argv = [sys.executable, str(KEPT / "starting/mirror.py"), str(port), str(mebibytes), mode]
    with _beside(argv, lambda: _listens(port), stderr=subprocess.DEVNULL):
        yield Place({"MIRROR": f"http://127.0.0.1:{port}"})


def stalled_mirror(here: Path, port: int) -> AbstractContextManager[Place]:
    """A mirror of a model hub, at MIRROR, that stops in the middle of a file."""
    return _mirror("stall", 40)


def slow_mirror(here: Path, port: int) -> AbstractContextManager[Place]:
    """A mirror of a model hub, at MIRROR, that sends 600 kB/s, for ten minutes and more."""
    return _mirror("slow", 500)


@contextmanager
def proxied(here: Path, port: int) -> Iterator[Place]:
    """A network in which connections to ephemeral ports go through a proxy; its pid in PLACE."""
    _as_root()
    note = here / "sidecar.pid"
    enter = (
        "ip link set lo up && "
        "iptables -t nat -A OUTPUT -p tcp -m mark --mark 0x539 -j RETURN && "
        "iptables -t nat -A OUTPUT -p tcp --syn --dport 32768:60999 -j REDIRECT --to-ports 15001 "
        f"&& ({sys.executable} {NETWORK}/sidecar.py 15001 {note} &) && "
        f'while ! test -s {note}; do sleep 0.1; done; exec "$@"'
    )
    yield Place({"PLACE": str(note)}, prefix=("unshare", "--net", "sh", "-c", enter, "sh"))


def swallow(pid: int, place: str) -> None:
    """The proxy goes on reading what the ranks send, and passes nothing on."""
    os.kill(int(Path(place).read_text()), signal.SIGUSR1)


def kill_child(pid: int, place: str) -> None:
    """SIGKILL, as for memory, to what serves beside a rank, its child."""
    for child in children(pid):
        if "serve" in command_line(child):
            os.kill(child, signal.SIGKILL)


def cut_off(pid: int, place: str) -> None:
    """The firewall drops what goes between a rank and its peers; not what is for the store.

    All at once, as a rule for a host does: one by one, the first would stop all ranks before any
    other connection is in use.
    """
    _drop(pid, list(_to_peers(pid)))


def cut_one(pid: int, place: str) -> None:
    """Likewise of one connection: the one to the next rank, which is its neighbour in a ring."""
    after = str(int(environment(pid)["RANK"]) + 1)
    _drop(pid, [ends for ends, rank in _to_peers(pid).items() if rank == after])


def _to_peers(pid: int) -> dict[tuple[str, str], str]:
    """The rank at the other end of each connection of a rank, by the ports of its ends."""
    inside, store = ["nsenter", "-t", str(pid), "-n"], environment(pid)["MASTER_PORT"]
    listed = subprocess.check_output([*inside, "ss", "-Htnp", "state", "established"], text=True)
    owners = {}
    for line in listed.splitlines():
        ours, theirs = (end.rpartition(":")[2] for end in line.split()[2:4])
        found = re.search(r"pid=(\d+),", line)
        if found and store not in (ours, theirs):
            owners[ours, theirs] = int(found[1])
    mine = [ends for ends, owner in owners.items() if owner == pid and ends[::-1] in owners]
    return {ends: environment(owners[ends[::-1]]).get("RANK", "") for ends in mine}


def _drop(pid: int, connections: Sequence[tuple[str, str]]) -> None:
    """Drop what goes either way over some connections, from one moment on."""
    ways = [way for ends in connections for way in (ends, ends[::-1])]
    rules = [f"-A OUTPUT -p tcp --sport {one} --dport {other} -j DROP" for one, other in ways]
    subprocess.run(
        ["nsenter", "-t", str(pid), "-n", "iptables-restore", "--noflush"],
        input="\n".join(["*filter", *rules, "COMMIT", ""]),
        text=True,
        check=True,
    )


def stop(pid: int, place: str) -> None:
    """SIGSTOP."""
    os.kill(pid, signal.SIGSTOP)


def trace(pid: int, place: str) -> int:
    """Attach strace, and stop strace while it holds the process; returns its pid."""
    log = subprocess.DEVNULL
    tracer = subprocess.Popen(["strace", "-f", "-p", str(pid)], stdout=log, stderr=log)
    status = Path(f"/proc/{pid}/status")
    assert wait_until(lambda: f"TracerPid:\t{tracer.pid}" in status.read_text())
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        os.kill(tracer.pid, signal.SIGSTOP)
        time.sleep(0.2)
        if "State:\tt" in status.read_text():
            return tracer.pid
        os.kill(tracer.pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("strace was never caught holding it")


def freeze(pid: int, place: str) -> None:
    """Put the process into the cgroup of PLACE, and freeze that."""
    control = Path(place)
    (control.parent / "cgroup.procs").write_text(str(pid))
    control.write_text("FROZEN" if control.name == "freezer.state" else "1")


def stop_launcher(pid: int, place: str) -> None:
    """Stop torchrun, which has the store; then let the ranks use that."""
    os.kill(parent(pid), signal.SIGSTOP)
    Path(environment(pid)["OUT_DIR"], "gate").touch()


@contextmanager
def pager(here: Path, port: int) -> Iterator[Place]:
    """Somebody reads a first page of the output, and no more; the pipe's name in OUTPUT."""
    pipe = here / "output"
    os.mkfifo(pipe)
    script = f"head -c 6000 > {here}/log.txt; exec sleep 100000"
    with (
        pipe.open("r+b", buffering=0) as end,
        subprocess.Popen(["sh", "-c", script], stdin=end) as reader,
    ):
        try:
            yield Place({"OUTPUT": str(pipe)})
        finally:
            reader.kill()


@contextmanager
def terminal(here: Path, port: int) -> Iterator[Place]:
    """A terminal for its input and output, at which nobody sits."""
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)

    def show() -> None:
        with suppress(OSError), (here / "log.txt").open("ab", buffering=0) as log:
            while text := os.read(ours, 1 << 16):
                log.write(text)

    screen = threading.Thread(target=show, daemon=True)
    screen.start()
    try:
        enter = f'exec "$@" <{name} >{name} 2>&1'
        yield Place({}, prefix=("sh", "-c", enter, "sh"))
    finally:
        os.close(theirs)  # with the job's, which was killed, its last end: reading stops
        screen.join(PATIENCE)
        os.close(ours)


INSIDE: dict[str, Callable[[Path, int], AbstractContextManager[Place]]] = {
    "limited": limited,
    "cramped": cramped,
    "quota": quota,
    "small_disk": small_disk,
    "frozen_disk": frozen_disk,
    "freezer": freezer,
    "slow_disk": slow_disk,
    "sync_disk": sync_disk,
    "small_shm": small_shm,
    "nowhere": nowhere,
    "own_network": own_network,
    "silent_program": silent_program,
    "web_server": web_server,
    "pager": pager,
    "terminal": terminal,
    "suspended_job": suspended_job,
    "proxied": proxied,
    "hub": hub,
    "stalled_mirror": stalled_mirror,
    "slow_mirror": slow_mirror,
}
OUTSIDE: dict[str, Callable[[int, str], int | None]] = {
    "cut_off": cut_off,
    "cut_one": cut_one,
    "stop": stop,
    "trace": trace,
    "freeze": freeze,
    "stop_launcher": stop_launcher,
    "swallow": swallow,
    "kill_child": kill_child,
}
