"""Processes with torch, for a real job over the nodes: found, started, talked to, ended.

Each is a Python of the node's that gets the program `nettest_rank` over its standard input, and
after it one line for everything it is to do. It ends when its input does, is killed should the
probe be, and has the environment that the probe was started in.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Sequence, Tuple

from ..proc import procfs
from ..wire import child, wire
from ..wire.requests import Refused
from ..wire.tools import GRACE, await_end, has_ended

if TYPE_CHECKING:
    from ..wire.requests import Message, Request
    from ..wire.tools import Tools

    Line = Tuple[str, Optional[bytes]]
    Said = queue.Queue[Line]

PROGRAM = "hangtop_probe/nettest/nettest_rank.py"
BOOT = """\
import os, sys
sys.path[:] = [p for p in sys.path if p]
source, size = b"", 0
while not source.endswith(b"\\n"):
    source += os.read(0, 1) or sys.exit(1)
size, source = int(source), b""
while len(source) < size:
    source += os.read(0, size - len(source)) or sys.exit(1)
exec(compile(source, "nettest_rank.py", "exec"))
"""
_LOOK = (
    "import sys; sys.path[:] = [p for p in sys.path if p]\n"
    "from importlib.util import find_spec\n"
    "version = None\n"
    "if find_spec('torch') is not None:\n"
    "    try:\n"
    "        from importlib.metadata import version as of; version = of('torch')\n"
    "    except Exception: version = '?'\n"
    "print(sys.version.split()[0], version)\n"
)
_LOOK_S = 30.0
"""Seconds an interpreter has to start: it may lie on a file server that is slow."""
MAX_LINE = 1 << 20
"""Bytes of a line of its output; a longer one is read as several."""
MAX_WAITING = 64
"""Lines that wait while the head does not take them."""
PUT_S = 0.5
"""Seconds between two looks at whether anybody still takes lines."""
MAX_SAID = 200
"""Lines of its own output that are told, the last ones."""


def with_torch(paths: Sequence[str], tools: Tools, request: Request) -> List[Dict[str, Any]]:
    """Try interpreters in turn up to the first that has torch; return what each said.

    Rows {path, version, torch} or {path, why}. torch is found, not imported.
    """
    found: List[Dict[str, Any]] = []
    for path in paths:
        full = shutil.which(path)
        if full is None:
            found.append({"path": path, "why": "there is no such program"})
            continue
        if any(one["path"] == full for one in found):
            continue
        try:
            done = tools.run([full, "-c", _LOOK], _LOOK_S, request.cancelled, _environ())
        except OSError as error:
            found.append({"path": full, "why": "it does not start: %s" % error.strerror})
            continue
        request.check()
        words = procfs.text(done.out[:4096]).split()
        if done.code != 0 or len(words) != 2:
            last = procfs.text(done.err[-4096:]).strip().rpartition("\n")[2]
            why = "no answer in %g s" % _LOOK_S if done.timed_out else last or "it fails"
            found.append({"path": full, "why": why[:200]})
            continue
        torch = None if words[1] == "None" else words[1][:40]
        found.append({"path": full, "version": words[0][:20], "torch": torch})
        if torch is not None:
            break
    return found


def program() -> bytes:
    """Return the source of what is run, from wherever this package was loaded."""
    try:
        return child.source(PROGRAM)
    except (OSError, KeyError):
        raise Refused("error", "the program for torch did not come along") from None


def _environ() -> Dict[str, str]:
    """Return the environment of a rank: what the probe was started in, all of it."""
    return {k: v for k, v in os.environ.items() if not k.startswith("HANGTOP_")}


class Worker:
    """One process with torch. The thread that makes it must stay: the kernel ends it with that."""

    def __init__(self, tools: Tools, python: str) -> None:
        source = program()
        self._tools = tools
        self._lock = threading.Lock()
        try:
            self._process = tools.start(
                [shutil.which(python) or python, "-u", "-c", BOOT],
                signal.SIGKILL,
                stdin=subprocess.PIPE,
                env=_environ(),
            )
        except OSError as error:
            raise Refused("error", "%s does not start: %s" % (python, error)) from None
        try:
            self._write(b"%d\n" % len(source) + source)
        except Refused:
            self.end()
            raise

    def tell(self, job: Any) -> None:
        """Give it something to do."""
        self._write(json.dumps(job).encode("ascii") + b"\n")

    def follow(self, request: Request, stop: threading.Event) -> Message:
        """Send on what it says until it ends or is to.

        Pieces {say: message} of its own, and {lines: [...]} of what torch and NCCL print.
        """
        said: "Said" = queue.Queue(MAX_WAITING)
        over = threading.Event()
        for name, stream in (("say", self._process.stdout), ("lines", self._process.stderr)):
            threading.Thread(target=_read, args=(name, stream, said, over), daemon=True).start()
        last: Deque[str] = deque(maxlen=MAX_SAID)
        left = 2
        try:
            while left and not (request.cancelled.is_set() or stop.is_set()):
                try:
                    name, line = said.get(timeout=0.2)
                except queue.Empty:
                    continue
                if line is None:
                    left -= 1
                elif name == "say":
                    _say(request, line)
                else:
                    text = procfs.text(line)[:1000]
                    last.append(text)
                    request.offer({"lines": [text]})
            if not left:  # its pipes end a moment before it does
                await_end(self._process, time.monotonic() + GRACE)
        finally:
            over.set()
            code = self.end()
        return {"code": code, "lines": list(last)}

    def end(self) -> Optional[int]:
        """End it; return its exit status if it had ended by itself."""
        by_itself = has_ended(self._process)
        self._tools.end(self._process)
        return self._process.returncode if by_itself else None

    def _write(self, data: bytes) -> None:
        stream = self._process.stdin
        assert stream is not None  # noqa: S101  # it was opened as a pipe
        with self._lock:
            try:
                stream.write(data)
                stream.flush()
            except (OSError, ValueError):
                raise Refused("gone", "its process with torch has ended") from None


def _say(request: Request, line: bytes) -> None:
    # What cannot be read or sent is somebody else's line, printed before torch was tamed.
    with contextlib.suppress(ValueError):
        request.give({"say": wire.Reader().loads(line)})


def _read(name: str, stream: Any, said: "Said", over: threading.Event) -> None:
    """Hand on lines of a stream; where nobody takes them, its process waits, as at any pipe."""
    try:
        while True:
            line = stream.readline(MAX_LINE)
            if not line:
                break
            _put(said, (name, line.rstrip(b"\n")), over)
    except (OSError, ValueError):
        pass  # closed, because it was ended
    _put(said, (name, None), over)


def _put(said: "Said", item: "Line", over: threading.Event) -> None:
    while not over.is_set():
        try:
            said.put(item, timeout=PUT_S)
            return
        except queue.Full:
            continue
