"""The rungs of a node whose probe has answered: what it may see, and with which tools."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.flight.ways import explain
from hangtop_core.analysis.ladder import cores, recorder
from hangtop_core.analysis.ladder.rung import Rung, missing, ok, skipped, unreached, warning
from hangtop_core.text.clean import AS_ROOT, clean, from_afar, plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.node.check import Check, Examined, RankCheck, Tool
    from hangtop_core.model.snapshot import Fact

NAMES = (
    "cache",
    "processes",
    "ptrace",
    "py-spy",
    "strace",
    "gdb",
    "nvml",
    "flight recorder",
    "cores",
    "clock",
)
CLOCK_S = 1.0
"""Seconds by which clocks may differ: logs are compared by the second."""
_CACHE_FIX = "hangtop --init 'export XDG_CACHE_HOME=DIR', a directory of yours that is not noexec"
_SECCOMP_FIX = "start the container with --cap-add=SYS_PTRACE, or --security-opt seccomp=unconfined"
_DRIVER_FIX = (
    "install the driver's libnvidia-ml1, or start the container with its GPUs (--gpus all)"
)
_LOST_FIX = "see what nvidia-smi and `dmesg | grep -i nvrm` say there"
_PREPARED_FIX = "start jobs by `hangtop run -- COMMAND`, which need no gdb"
_NOT_SENT = ("installed", "shared")


def rungs(seen: Examined, check: Check) -> list[Rung]:
    """Return the rungs after the probe, in the order of `NAMES`."""
    facts = seen.node.capabilities
    ptrace = _ptrace(check, facts.get("ptrace"))
    found = [
        _cache(check),
        _processes(check),
        ptrace,
        _py_spy(check, facts.get("py-spy"), ptrace),
        _tool("strace", check.strace, facts.get("strace"), "system calls"),
        _gdb(check, facts.get("gdb")),
        _nvml(check),
        recorder.rung(check),
        cores.rung(check, facts.get("core")),
        _clock(seen),
    ]
    if seen.here:
        return found
    return [replace(one, fix=from_afar(one.fix)) if one.fix else one for one in found]


def _cache(check: Check) -> Rung:
    cache, where = check.cache, check.source
    held = f"{size(cache.bytes)} there" if cache.bytes else "empty"
    free = f", {size(cache.free)} free" if cache.free is not None else ""
    swept = f", {plural(cache.swept, 'old version')} removed" if cache.swept else ""
    detail = f"{clean(cache.path, 200)}: {held}{free}{swept}" if cache.path else None
    if cache.why is not None and "memory" in (where.probe, where.py_spy):
        text = f"nothing can be kept: {clean(cache.why, 200)}"
        return warning("cache", text, _CACHE_FIX, detail)
    if where.probe in _NOT_SENT and where.py_spy in (*_NOT_SENT, None):
        return skipped("cache", "not needed there")
    return ok("cache", "in use", detail)


def _processes(check: Check) -> Rung:
    seen = check.processes
    detail = f"{plural(seen.seen, 'process', 'processes')}, {seen.others} of other users"
    hidden = seen.hidepid not in (None, "0", "off")
    if seen.seen == 0:
        return missing("processes", "/proc shows none", "mount /proc on it")
    if hidden and not check.rights.capable:
        return warning(
            "processes",
            f"/proc is mounted with hidepid={clean(seen.hidepid or '', 20)}: only those of "
            f"{clean(check.rights.user, 60)} are seen",
            f"{AS_ROOT}, or the mount option gid= with a group of yours",
            detail,
        )
    if seen.contained:
        return ok("processes", "those of its PID namespace, as in a container", detail)
    if not seen.sees_init:
        return warning("processes", "not all are shown: process 1 is not", AS_ROOT, detail)
    return ok("processes", "all of them", detail)


def _ptrace(check: Check, fact: Fact | None) -> Rung:
    """Whether ranks can be looked into: tried on our own process, and asked for each rank."""
    trial, rights = check.trial, check.rights
    if trial.why is not None:
        return missing("ptrace", f"could not be tried: {clean(trial.why, 200)}")
    if trial.ptrace:
        return _ptrace_refused(check, fact, trial.ptrace)
    own = [rank for rank in check.ranks if rank.uid == rights.uid]
    closed = [rank for rank in check.ranks if not rank.attach]
    if any(rank.uid == rights.uid for rank in closed):
        first = next(rank for rank in closed if rank.uid == rights.uid)
        what = f"{sum(not rank.attach for rank in own)} of {plural(len(own), 'rank')} of "
        return missing("ptrace", f"{what}{_user(check)}: {clean(first.why or '')}", _fix(first))
    found = f"{plural(len(check.ranks) + check.more_ranks, 'rank')} there"
    if closed:
        return warning("ptrace", _others(closed), _fix(closed[0]), found)
    if trial.ptrace is None:
        return warning("ptrace", "could not be tried (no ctypes in this Python?)", None, found)
    if fact is not None and fact.why:
        return warning("ptrace", clean(fact.why), _fix(fact), found)
    whose = "every process" if rights.capable else f"the processes of {_user(check)}"
    return ok("ptrace", f"may look into {whose}", found)


def _ptrace_refused(check: Check, fact: Fact | None, number: int) -> Rung:
    """Without ptrace(2) py-spy may still read memory: a filter of system calls lets it."""
    text = f"the kernel refuses it: {os.strerror(number)}"
    fix: str | None = f"{AS_ROOT}, or run it outside of the container"
    if fact is not None and not fact.ok:
        text, fix = clean(fact.why or text), _fix(fact)
    elif check.rights.seccomp == 2 and number in (errno.EPERM, errno.ENOSYS, errno.EACCES):
        text, fix = "a seccomp filter refuses it (a container?)", _SECCOMP_FIX
    tried = check.trial.py_spy
    if tried is not None and tried.failure is None:
        text += "; stacks of Python can be read, native ones and system calls cannot"
        return warning("ptrace", text, fix)
    return missing("ptrace", text, fix)


def _others(closed: Sequence[RankCheck]) -> str:
    users = sorted({clean(rank.user, 60) for rank in closed})
    whose = ", ".join(users[:4])
    return f"{plural(len(closed), 'rank')} of {whose}: {clean(closed[0].why or 'refused')}"


def _user(check: Check) -> str:
    return clean(check.rights.user, 60)


def _fix(what: RankCheck | Fact) -> str | None:
    return clean(what.fix) if what.fix else None


def _py_spy(check: Check, fact: Fact | None, ptrace: Rung) -> Rung:
    tried = check.trial.py_spy
    version = f"{clean(fact.version, 40)} " if fact is not None and fact.version else ""
    if fact is not None and not fact.ok:
        return missing("py-spy", clean(fact.why or "not there"), clean(fact.fix or "") or None)
    if tried is None:
        return unreached("py-spy", f"{version}is there")
    if tried.failure is not None:
        if tried.failure.kind == "denied" and ptrace.state == "missing":
            return unreached("py-spy", f"{version}is there; see ptrace")
        fix = clean(tried.failure.fix) if tried.failure.fix else None
        return missing("py-spy", f"{version}{clean(tried.failure.text)}", fix)
    took = f", a stack in {tried.took * 1000:.0f} ms" if tried.took is not None else ""
    return ok("py-spy", f"{version}takes stacks", f"{_place(check, fact)}{took}")


def _place(check: Check, fact: Fact | None) -> str:
    """Where py-spy is; the paths of caches say nothing to people."""
    where = {"cache": "in its cache", "memory": "sent, in memory"}
    path = fact.path if fact is not None else None
    return where.get(check.source.py_spy or "") or clean(path or "there", 200)


def _tool(name: str, tool: Tool, fact: Fact | None, use: str) -> Rung:
    if tool.ok:
        return ok(name, clean(tool.version or "runs", 40), clean(tool.path or "", 200) or None)
    fix = clean(fact.fix) if fact is not None and fact.fix else None
    return missing(name, f"{clean(tool.why or 'not there')} (only needed for {use})", fix)


def _gdb(check: Check, fact: Fact | None) -> Rung:
    """Whether it runs, and whether it can call into a process without breaking that."""
    found = _tool("gdb", check.gdb, fact, "native stacks of non-Python threads")
    called = check.gdb_call
    if found.state != "ok" or called is None or called.code == "works":
        return found
    if called.code == "no-attach" and check.trial.ptrace:
        return unreached("gdb", f"{found.text} is there; see ptrace")
    why, fix = explain(called)
    text = f"{found.text}: {why} (only needed for `hangtop flight --allow-inject`)"
    return warning("gdb", text, f"{fix}; or {_PREPARED_FIX}" if fix else None, found.detail)


def _nvml(check: Check) -> Rung:
    nvml = check.nvml
    if nvml.driver is not None:
        text = f"driver {clean(nvml.driver, 40)}, {plural(nvml.gpus or 0, 'GPU')}"
        if nvml.error is not None:
            return warning("nvml", f"{text}; {clean(nvml.error, 200)}", _LOST_FIX)
        return ok("nvml", text) if nvml.gpus else warning("nvml", text)
    if not nvml.loaded:
        return skipped("nvml", "no NVIDIA driver there")
    if nvml.missing is not None:
        text = f"the driver is loaded, its library is not there: {clean(nvml.missing, 200)}"
        return warning("nvml", text, _DRIVER_FIX)
    text = clean(nvml.error or "no answer", 200)
    return warning("nvml", text, _LOST_FIX)


def _clock(seen: Examined) -> Rung:
    clock = seen.clock
    if clock is None:
        return unreached("clock", "it did not answer in time")
    if clock.same:
        return ok("clock", "the same clock")
    apart = abs(clock.ahead)
    detail = f"{clock.ahead:+.3f} s, give or take {clock.within:.3f} s"
    if apart - clock.within <= CLOCK_S:
        return ok("clock", f"within {CLOCK_S:g} s of this machine's", detail)
    which = "ahead of" if clock.ahead > 0 else "behind"
    text = f"more than {CLOCK_S:g} s {which} this machine's; hangtop allows for it, logs do not"
    return warning("clock", text, "see there: timedatectl, chronyc tracking", detail)
