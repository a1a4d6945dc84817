"""Facts about the node itself: who we are on it, what can be used, memory, load, addresses."""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import socket
import sys
import sysconfig
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..gpu import gpus
from ..proc import procfs
from ..wire import fixes, tools, wire
from . import corepattern, kernellog, permission

if TYPE_CHECKING:
    Fact = Dict[str, Any]


_NO_ADDRESS = ("127.", "0.", "169.254.")
_HOST = re.compile(rb"-- ([0-9.]+)\n\s*/32 host LOCAL")
MAX_ADDRESSES = 64


def boot_id() -> str:
    """Return the id the kernel gave itself at boot."""
    return procfs.text((procfs.read("/proc/sys/kernel/random/boot_id") or b"").strip())


def boot_time() -> float:
    """Return when the node booted, seconds since the epoch, from /proc/stat."""
    for line in (procfs.read_all("/proc/stat") or b"").split(b"\n"):
        if line.startswith(b"btime "):
            return float(procfs.number(line[6:]) or 0)
    return 0.0


def hello(rights: permission.Rights) -> Dict[str, Any]:
    """Return the first message: protocol, who and where we are, what can be used here."""
    return {
        "protocol": wire.PROTOCOL,
        "python": platform.python_version(),
        "arch": platform.machine(),
        "system": "%s %s" % (platform.system(), platform.release()),
        "hostname": socket.gethostname(),
        "user": permission.user_name(rights.uid),
        "uid": rights.uid,
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "pid_ns": procfs.namespace("self", "pid"),
        "clock": round(time.time(), 3),
        "cpus": cpus(),
        "capabilities": capabilities(rights),
    }


def cpus() -> int:
    """Return how many CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


def capabilities(rights: permission.Rights) -> Dict[str, Fact]:
    """Return what can be used on this node, by name, each with why not and the fix."""
    return {
        "py-spy": py_spy(),
        "strace": tool("strace", fixes.STRACE),
        "gdb": tool("gdb", fixes.GDB),
        "ptrace": permission.ptrace_fact(rights),
        "nvml": nvml(),
        "kernel log": kernellog.fact(),
        "core": corepattern.fact(),
    }


def py_spy() -> Fact:
    """Find py-spy: beside our own interpreter, as an installed package, then on PATH."""
    path = find_py_spy()
    if path is None:
        why = "py-spy is neither beside %s nor on PATH" % sys.executable
        not_sent = os.environ.get("HANGTOP_NO_PY_SPY")
        why += "; it was not sent along: %s" % not_sent if not_sent else ""
        return {"ok": False, "why": why, "fix": fixes.PY_SPY}
    fact: Fact = {"ok": True, "path": path}
    version = _package_version(path) or _asked_version(path)
    if version:
        fact["version"] = version
    else:
        fact.update(ok=False, why="%s does not run here" % path, fix=fixes.PY_SPY)
    return fact


def find_py_spy() -> Optional[str]:
    """Return the path of py-spy, or None."""
    given = os.environ.get("HANGTOP_PY_SPY")
    places = [given] if given else []
    places.append(os.path.join(os.path.dirname(sys.executable or ""), "py-spy"))
    places.append(os.path.join(sysconfig.get_path("scripts") or "", "py-spy"))
    places.extend(os.path.join(os.path.dirname(p), "bin", "py-spy") for p in _site_roots())
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return os.path.abspath(place)
    return shutil.which("py-spy")


def _site_roots() -> List[str]:
    """Directories whose neighbour `bin` holds scripts of packages: lib/pythonX/site-packages."""
    return [os.path.dirname(os.path.dirname(p)) for p in sys.path if p.endswith("-packages")]


def _package_version(path: str) -> Optional[str]:
    """Return the version from py_spy-X.dist-info near the binary: cheaper than asking it."""
    lib = os.path.join(os.path.dirname(os.path.dirname(path)), "lib")
    found = glob.glob(glob.escape(lib) + "/*/site-packages/py_spy-*.dist-info")
    return found[0].rpartition("/py_spy-")[2][: -len(".dist-info")] if found else None


def _asked_version(path: str) -> Optional[str]:
    try:
        done = tools.Tools().run([path, "--version"], 2.0, threading.Event())
    except OSError:
        return None
    said = procfs.text(done.out[:4096]).split()
    return said[-1][:40] if done.code == 0 and said else None


def tool(name: str, fix: str) -> Fact:
    """Find a program on PATH."""
    path = shutil.which(name)
    if path is None:
        return {"ok": False, "why": "%s is not on PATH" % name, "fix": fix}
    return {"ok": True, "path": path}


def nvml() -> Fact:
    """Whether there is an NVIDIA driver; nothing is loaded or asked."""
    if not gpus.expected():
        return {"ok": False, "why": "no NVIDIA driver on this node"}
    return {"ok": True}


def memory() -> Dict[str, Any]:
    """Return memory and /dev/shm of the node in bytes, the load average, and what is short.

    `oom_kills` counts since boot (/proc/vmstat, Linux 4.13); `memory_full` and `io_full` are the
    percentages of the last 10 s in which nothing could run for want of memory, or of a disk
    (/proc/pressure, Linux 4.20).
    """
    info = procfs.parse_pairs(procfs.read("/proc/meminfo") or b"")
    values: Dict[str, Any] = {}
    for field, name in (("memory_total", "MemTotal"), ("memory_available", "MemAvailable")):
        kib = procfs.parse_int(info.get(name))
        values[field] = None if kib is None else kib // 1024 * 1024 * 1024
    # Of so many digits at most: in containers lxcfs answers here, not the kernel.
    load = re.match(rb"\d{1,9}\.\d{1,9}", procfs.read("/proc/loadavg") or b"")
    values["load1"] = float(load[0]) if load else None
    values["shm_total"], values["shm_free"] = _shm()
    counters = procfs.read_all("/proc/vmstat") or b""
    killed = re.search(rb"^oom_kill (\d{1,18})$", counters, re.MULTILINE)
    values["oom_kills"] = int(killed.group(1)) if killed else None
    values["memory_full"] = _pressure("memory")
    values["io_full"] = _pressure("io")
    return values


def _pressure(what: str) -> Optional[float]:
    line = re.search(rb"^full avg10=(\d{1,3})", procfs.read("/proc/pressure/" + what) or b"", re.M)
    return float(line.group(1)) if line else None


def _shm() -> Tuple[Optional[int], Optional[int]]:
    try:
        fs = os.statvfs("/dev/shm")  # noqa: S108  # its size is what is asked for
    except OSError:
        return None, None
    return fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize // (1 << 20) * (1 << 20)


def addresses() -> List[str]:
    """Return the addresses others may reach this node by, from its own network namespace.

    Sources: /proc/net/fib_trie, whose leaves `/32 host LOCAL` are addresses of this host, and
    /proc/net/if_inet6, both of Linux. Loopback and link-local ones are left out.
    """
    found = {
        procfs.text(one)
        for one in _HOST.findall(procfs.read_all("/proc/self/net/fib_trie", 4 << 20) or b"")
    }
    for line in (procfs.read_all("/proc/self/net/if_inet6") or b"").split(b"\n"):
        fields = line.split()
        try:
            raw, scope = bytes.fromhex(fields[0].decode("ascii")), int(fields[3], 16)
            # IPV6_ADDR_LOOPBACK and IPV6_ADDR_LINKLOCAL of include/net/ipv6.h
            if not scope & 0x30:
                found.add(socket.inet_ntop(socket.AF_INET6, raw))
        except (IndexError, ValueError, OSError):
            continue
    return sorted(one for one in found if not one.startswith(_NO_ADDRESS))[:MAX_ADDRESSES]
