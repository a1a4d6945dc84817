"""Answers `core`: what a core of a process that runs would cost, and taking one with gdb.

The process stands still while gdb copies its memory to a file, and runs on afterwards, which is
checked. Unlike a call into the process, copying may be ended at any moment: gdb lets go.
Seen with gdb 13: 823 MiB in 2.4 s, of which 0.5 s are gdb's own; `auto-solib-add off` keeps it from
reading the symbols of torch's libraries meanwhile.

gdb would follow a link that somebody has laid where the core is to be, and write into a file that
they can read. So it writes into one that is open here, which gets its name once it is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, Iterator, Optional, Tuple

from ..files import filesystems
from ..proc import procfs
from ..stacks import tracing
from ..wire import fixes
from ..wire.requests import Message, Refused, Request

if TYPE_CHECKING:
    from ..node import permission
    from ..wire.tools import Tools

BYTES_PER_S = 250 << 20
"""How fast a core is written to a disk of its own; less on a file server."""
START_S = 1.0
MAX_SECONDS = 1800.0
_ROOM = 256 << 20
"""Bytes that are to stay free on the disk."""


def handle(request: Request, tools: Tools, rights: permission.Rights) -> Message:
    """Answer `core`: the cost, and with `take` the core."""
    gdb = shutil.which("gdb")
    if gdb is None:
        raise Refused("missing", "gdb is not on PATH", fixes.GDB)
    pid = tracing.target_of(request, rights)
    found = cost(pid, request.message.get("dir"))
    if not request.message.get("take"):
        return found
    if found["free"] is not None and found["free"] < found["size"] + _ROOM:
        raise Refused("error", "there is too little room for it in %s" % found["dir"])
    return take(request, tools, gdb, pid, found)


def cost(pid: int, wanted: object = None) -> Message:
    """Return where a core of ``pid`` would go, and about how many bytes and seconds it takes."""
    directory = wanted if isinstance(wanted, str) and wanted else _own_directory(pid)
    if not os.path.isabs(directory):
        raise Refused("error", "%s is no absolute path" % directory)
    if not os.path.isdir(directory):
        raise Refused("error", "there is no directory %s on this node" % directory)
    if not os.access(directory, os.W_OK):
        raise Refused("denied", "%s cannot be written to" % directory)
    size = estimate(procfs.read_all("/proc/%d/smaps" % pid, 64 << 20) or b"")
    try:
        disk: Optional[int] = shutil.disk_usage(directory).free
    except OSError:
        disk = None
    mount = procfs.mount_of(directory, procfs.mounts("self"))
    return {
        "dir": directory,
        "size": size,
        "free": disk,
        "seconds": round(START_S + size / BYTES_PER_S, 1),
        "network": mount is not None and filesystems.is_network(mount.fstype),
    }


def _own_directory(pid: int) -> str:
    """The working directory of the process, where it is the same directory for us."""
    path = procfs.link("/proc/%d/cwd" % pid) or ""
    with contextlib.suppress(OSError):
        if os.path.samefile(path, "/proc/%d/cwd" % pid) and os.access(path, os.W_OK):
            return path
    return "/tmp"  # noqa: S108  # said beforehand; see `_file` for what others could do there


def estimate(smaps: bytes) -> int:
    """Return about how many bytes gdb writes: memory that is, or may be, the process's own.

    That is what the kernel's default coredump_filter (0x33) says, which gdb follows.
    """
    total = size = 0
    counts = own = False
    for line in smaps.split(b"\n"):
        words = line.split()
        if not words:
            continue
        if not words[0].endswith(b":"):
            # Also what is only reserved: gdb 13 writes that, too, as zeros.
            counts = len(words) > 2 and words[1][3:4] == b"p"
            # gdb takes the mapping with the headers of a library as a whole.
            own = len(words) < 6 or not words[5].startswith(b"/") or not words[2].strip(b"0")
        elif words[0] == b"Size:":
            size = (procfs.number(b"".join(words[1:2])) or 0) * 1024
        elif words[0] == b"Anonymous:":
            own = own or words[1:2] != [b"0"]
        elif words[0] == b"VmFlags:" and counts and own and not {b"dd", b"io"} & set(words):
            total += size  # not what is marked as not to be dumped, nor memory of a device
    return total


def take(request: Request, tools: Tools, gdb: str, pid: int, found: Message) -> Message:
    """Let gdb write the core; return its path, and whether the process runs again."""
    name = "core.%d.%d" % (pid, int(time.time()))
    path = os.path.join(found["dir"], name)
    limit = min(60.0 + 4 * found["seconds"], MAX_SECONDS)
    argv = [gdb, "-nx", "-nh", "-batch"]
    for setting in ("auto-load no", "debuginfod enabled off", "auto-solib-add off"):
        argv += ["-iex", "set " + setting]
    began = time.monotonic()
    try:
        with _directory(found["dir"]) as folder, _file(folder, name) as (core, has_name):
            write = "generate-core-file /proc/%d/fd/%d" % (os.getpid(), core)
            argv += ["-p", str(pid), "-ex", write, "-ex", "detach"]
            try:
                done = tools.run(argv, limit, request.cancelled)
            finally:
                running = tracing.resume(pid)
            size = os.fstat(core).st_size
            if done.code != 0 or not size:
                still = "" if running else "; the process does NOT run again: kill -CONT %d" % pid
                raise Refused("error", _why(done, limit) + still)
            if not has_name:
                os.link("/proc/self/fd/%d" % core, name, dst_dir_fd=folder, follow_symlinks=True)
    except OSError as error:
        raise Refused("error", "no core was taken: %s: %s" % (path, error.strerror)) from None
    took = round(time.monotonic() - began, 2)
    return dict(found, path=path, size=size, seconds=took, running_again=running)


@contextlib.contextmanager
def _directory(path: str) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _file(folder: int, name: str) -> Iterator[Tuple[int, bool]]:
    """Open a new file in a directory, and say whether it has its name yet.

    Nobody else is to read it: it holds whatever the rank held. Without a name (open(2), O_TMPFILE)
    it goes with the probe, however that ends; some file servers cannot do that.
    """
    try:
        core, has_name = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=folder), False
    except OSError:
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR
        core, has_name = os.open(name, flags, 0o600, dir_fd=folder), True
    try:
        yield core, has_name
    except BaseException:
        if has_name:
            os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(core)


def _why(done: Any, limit: float) -> str:
    if done.timed_out:
        return "it took more than %g s and was given up" % limit
    if done.cancelled:
        return "it was given up"
    said = procfs.text(done.err[-4096:]).strip().splitlines()
    return "gdb wrote no core: %s" % (said[-1][:300] if said else "it ended with %s" % done.code)
