"""Answers `nettest`: this node's part of a test of the network, only ever asked for by a person.

``do`` says which: ``look`` (interfaces, Pythons), ``names`` (name service, routes), ``listen`` and
``connect`` (ports), ``start`` and ``job`` (a process with torch), ``stop`` (what has this
``name``). What is open or runs for it ends with its request, and so with the connection.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import threading
from typing import TYPE_CHECKING, Dict, Iterator, List

from ..proc import procfs
from ..table.table import Table
from ..wire.requests import Refused
from . import nettest_links, nettest_names, nettest_ports, nettest_ranks

if TYPE_CHECKING:
    from ..node import permission
    from ..wire.requests import Message, Request
    from ..wire.tools import Tools

SETTINGS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA")
MAX_PYTHONS = 6


class Nettest:
    """What one connection has of a test on this node."""

    def __init__(self, tools: Tools, rights: permission.Rights) -> None:
        self._tools = tools
        self._rights = rights
        self._workers: Dict[str, nettest_ranks.Worker] = {}
        self._stops: Dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def handle(self, request: Request) -> Message:
        """Answer one request."""
        what = request.message.get("do")
        if what == "look":
            return self._look(request)
        if what == "names":
            return nettest_names.handle(request)
        if what == "listen":
            with self._named(request) as stop:
                return nettest_ports.listen(request, stop)
        if what == "connect":
            return nettest_ports.connect(request)
        if what == "start":
            return self._start(request)
        if what == "job":
            return self._job(request)
        if what == "stop":
            with self._lock:
                stop_it = self._stops.get(str(request.message.get("name")))
            if stop_it is not None:
                stop_it.set()
            return {}
        raise Refused("unsupported", "this probe has no nettest %r" % str(what)[:40])

    def _look(self, request: Request) -> Message:
        try:
            links = nettest_links.read()
        except OSError as error:
            raise Refused("error", "its interfaces cannot be read: %s" % error) from None
        request.give(
            {
                "hostname": socket.gethostname(),
                "system": "%s %s" % (platform.system(), platform.release()),
                "links": links,
                "default": nettest_links.default_interface(),
                "ephemeral": nettest_links.ephemeral_ports(),
                "settings": {n: os.environ[n][:200] for n in SETTINGS if n in os.environ},
                "pythons": nettest_ranks.with_torch(
                    pythons(request.message.get("python"), self._rights), self._tools, request
                ),
            }
        )
        return {}

    @contextlib.contextmanager
    def _named(self, request: Request) -> Iterator[threading.Event]:
        """Let a request be stopped by its name, which nothing else may have."""
        name, stop = request.message.get("name"), threading.Event()
        if not isinstance(name, str) or not name:
            raise Refused("error", "it needs a name")
        with self._lock:
            if name in self._stops:
                raise Refused("error", "%s is under way" % name[:40])
            self._stops[name] = stop
        try:
            yield stop
        finally:
            with self._lock:
                del self._stops[name]

    def _start(self, request: Request) -> Message:
        name, python = str(request.message.get("name")), request.message.get("python")
        if not isinstance(python, str):
            raise Refused("error", "a process with torch needs a `python`")
        with self._named(request) as stop:
            worker = nettest_ranks.Worker(self._tools, python)
            with self._lock:
                self._workers[name] = worker
            try:
                return worker.follow(request, stop)
            finally:
                with self._lock:
                    del self._workers[name]

    def _job(self, request: Request) -> Message:
        with self._lock:
            worker = self._workers.get(str(request.message.get("name")))
        if worker is None:
            raise Refused("gone", "its process with torch has ended")
        worker.tell(request.message.get("job"))
        return {}


def pythons(asked: object, rights: permission.Rights) -> List[str]:
    """Return the Python that is asked for, or those that may have torch, the likeliest first.

    Those of ranks only of our own: what others name is not started, least of all by root.
    """
    if isinstance(asked, str) and asked not in ("", "python3"):
        return [asked]
    table = Table(rights)
    table.scope(False, None)
    table.scan()
    found = []
    for pid, fields in sorted(table.processes().items()):
        if fields["role"] == "rank" and fields["uid"] == rights.uid:
            line = procfs.parse_cmdline(procfs.read("/proc/%d/cmdline" % pid) or b"")
            found += [line[0]] if line and os.path.isabs(line[0]) else []
    found += ["python3", sys.executable]
    return list(dict.fromkeys(found))[:MAX_PYTHONS]
