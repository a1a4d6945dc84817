"""The probe put together: its table, its tools, and which request is answered by what.

Over pdsh, where every byte counts, a probe is sent without what it will not be asked (`MODULES`).
"""

from __future__ import annotations

import importlib
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List

from .gpu.gpus import Gpus
from .gpu.hardware import Hardware
from .node import node, permission
from .stacks.stacks import Sampler
from .table.resolver import Resolver
from .table.table import Table
from .table.watch import BUDGET, Watch
from .wire import cache, fixes
from .wire.requests import Message, Refused, Request
from .wire.server import UNENDING, Handler, describe
from .wire.tools import Tools

MODULES = {
    "descriptors": "hangtop_probe.descriptors.descriptors",
    "holders": "hangtop_probe.descriptors.holders",
    "ras": "hangtop_probe.recorder.ras",
    "recorder": "hangtop_probe.recorder.recorder",
    "log": "hangtop_probe.output.logs",
    "core": "hangtop_probe.cores.cores",
    "numerics": "hangtop_probe.output.numerics",
    "strace": "hangtop_probe.stacks.strace",
    "check": "hangtop_probe.check",
    "nettest": "hangtop_probe.nettest.nettest",
}
"""By request: the module that answers it, where that need not be here."""


class Probe:
    """Everything one connection has on this node."""

    def __init__(self) -> None:
        self.rights = permission.rights()
        self.tools = Tools()
        self.table = Table(self.rights)
        self.table.tools = self.tools.pids
        self.gpus = Gpus(self.tools)
        self.sampler = Sampler(self.tools, self.table)
        self._told: Dict[int, str] = {}
        """By process, why its recorder could not be read when that was last told."""
        self.resolver = Resolver(self.table, self._resolve)
        self.bear_silence: Callable[[float], None] = _ignore
        """Is told by the head after which silence to end."""
        self._ending = threading.Event()
        self.keeper = cache.Keeper(self._ending)
        self._watching: List[Request] = []
        self._lock = threading.Lock()

    def handlers(self) -> Dict[str, Handler]:
        """Return what answers each `op`."""
        rights, tools = self.rights, self.tools
        makers: Dict[str, Callable[[Any], Handler]] = {
            "descriptors": lambda of: partial(of.handle, rights=rights),
            "holders": lambda of: partial(of.handle, rights=rights),
            "ras": lambda of: partial(of.handle, rights=rights),
            "recorder": lambda of: partial(of.handle, rights=rights, tools=tools, told=self._told),
            "log": lambda of: of.Logs(self.table, rights).handle,
            "core": lambda of: partial(of.handle, rights=rights, tools=tools),
            "numerics": lambda of: partial(of.handle, rights=rights),
            "strace": lambda of: partial(of.handle, rights=rights, tools=tools),
            "check": lambda of: partial(of.handle, rights=rights, tools=tools, keeper=self.keeper),
            "nettest": lambda of: of.Nettest(tools, rights).handle,
        }
        return {
            "watch": self.watch,
            "stacks": self.sampler.handle,
            "clean": lambda request: cache.clean(),
            **{op: _handler(op, make) for op, make in makers.items()},
        }

    def _resolve(self, pid: int) -> None:
        self.sampler.take(pid, "nonblocking", True, 3.0, self._ending)

    def hello(self) -> Message:
        """Return the first message."""
        return {"id": 0, "hello": node.hello(self.rights)}

    def pushed_hello(self) -> Message:
        """Return the first message of a probe that nothing can be sent to."""
        message = self.hello()
        message["hello"]["capabilities"]["strace"] = {
            "ok": False,
            "why": UNENDING,
            "fix": fixes.VIA_SSH,
        }
        return message

    def watch(self, request: Request) -> Message:
        """Answer `watch`: pieces until cancelled or replaced by another watch."""
        with self._lock:
            for other in self._watching:
                other.cancel()
            self._watching = [request]
        message = request.message
        watch = self._prepared(message)
        while True:
            self.resolver.start(watch.pause)
            request.wait_credit()
            if message.pop("resync", False):
                watch.restart()
            piece = watch.next_piece()
            if piece is not None:
                request.give(piece)
            self._wait(request, watch.pause)

    def _prepared(self, message: Message) -> Watch:
        """Take in whom to watch, and return what looks at them."""
        pids = message.get("pids")
        only = frozenset(int(p) for p in pids) if pids else None
        jobs, step = message.get("slurm_jobs"), message.get("slurm_step")
        slurm = (frozenset(map(str, jobs)), str(step) if step else None) if jobs else None
        self.table.scope(bool(message.get("all_users")), only, slurm)
        silence = message.get("silence")
        if isinstance(silence, (int, float)) and silence >= 1:
            self.bear_silence(float(silence))
        try:
            interval = float(message.get("interval") or 1.0)
            budget = float(message.get("budget") or BUDGET)
            rest = float(message.get("rest") or 0.0)
        except (TypeError, ValueError):
            raise Refused("error", "interval, budget or rest is no number") from None
        return Watch(self.table, interval, Hardware(self.gpus), budget, rest)

    def _wait(self, request: Request, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not request.message.get("resync"):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if request.cancelled.wait(min(left, 0.5)):
                request.check()

    def close(self) -> None:
        """End the tools; nothing of ours may outlive the connection."""
        self._ending.set()
        self.gpus.stop()
        self.resolver.stop()
        self.tools.close()


def _handler(op: str, make: Callable[[Any], Handler]) -> Handler:
    """Return what answers a request, loaded now: later a file server that it is on may be gone."""
    try:
        return make(importlib.import_module(MODULES[op]))
    except ImportError:
        return partial(_refuse, op)


def _refuse(op: str, request: Request) -> Message:
    raise Refused("unsupported", "this probe has no %s" % op)


def _ignore(seconds: float) -> None:
    """Nobody listens yet."""


def internal_error(error: BaseException) -> Message:
    """Return the message for an error that no request is to blame for."""
    return {"id": 0, "err": {"kind": "error", "text": describe(error), "fix": None}}
