"""What this node makes of names and addresses: name service both ways, and routes.

A route is asked of the kernel by connecting a datagram socket, which sends nothing.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

if TYPE_CHECKING:
    from ..wire.requests import Message, Request

MAX_NAMES = 2048
AT_ONCE = 16
PIECE = 256
NO_ANSWER = "no answer from the name service in time"

Task = Tuple[str, str]


def handle(request: Request) -> Message:
    """Send what ``names`` resolve to, and ``addresses`` back, and from where one goes to these.

    Pieces of ``names`` {name: [addresses] or reason}, ``reverse`` {address: name or None} and
    ``sources`` {address: own address or reason}. ``seconds`` is for all together.
    """
    names = _texts(request.message.get("names"))
    addresses = _texts(request.message.get("addresses"))
    seconds = min(float(request.message.get("seconds") or 5.0), 30.0)
    request.give({"sources": {address: source(address) for address in addresses}})
    tasks = [("names", name) for name in names] + [("reverse", one) for one in addresses]
    found = _all(tasks, time.monotonic() + seconds, request)
    for kind, missing in (("names", NO_ANSWER), ("reverse", None)):
        wanted = [task[1] for task in tasks if task[0] == kind]
        for start in range(0, len(wanted), PIECE):
            some = wanted[start : start + PIECE]
            request.give({kind: {one: found.get((kind, one), missing) for one in some}})
    return {}


def resolve(name: str) -> Any:
    """Return the addresses of a name, or why there are none."""
    try:
        rows = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)[:200]
    return list(dict.fromkeys(str(row[4][0]) for row in rows))[:16]


def reverse(address: str) -> Any:
    """Return the name of an address, or None."""
    try:
        return socket.gethostbyaddr(address)[0][:255]
    except (OSError, UnicodeError):
        return None


def source(address: str) -> str:
    """Return the own address from which packets to an address would go, or why none would."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        return "no route: %s" % error.strerror


def _all(tasks: List[Task], deadline: float, request: Request) -> Dict[Task, Any]:
    """Ask the name service for everything, some at once; what hangs is left behind."""
    calls: Dict[str, Callable[[str], Any]] = {"names": resolve, "reverse": reverse}
    waiting: "queue.SimpleQueue[Task]" = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: "queue.SimpleQueue[Tuple[Task, Any]]" = queue.SimpleQueue()

    def work() -> None:
        while time.monotonic() < deadline and not request.cancelled.is_set():
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            done.put((task, calls[task[0]](task[1])))

    for _ in range(min(AT_ONCE, len(tasks))):
        threading.Thread(target=work, daemon=True).start()
    found: Dict[Task, Any] = {}
    while len(found) < len(tasks) and time.monotonic() < deadline:
        request.check()
        try:
            task, value = done.get(timeout=min(0.2, max(0.01, deadline - time.monotonic())))
        except queue.Empty:
            continue
        found[task] = value
    return found


def _texts(given: Any) -> List[str]:
    return [one for one in given or [] if isinstance(one, str) and one][:MAX_NAMES]
