"""Pick this node's share out of a shared standard input, before the boot runs.

A broadcast srun gives all its nodes the same standard input, and labels their output. The head
sends this file's source first, followed by a call of `start`. From then on standard input is
frames, each for some of the nodes; a thread passes those for this node to a pipe that replaces
standard input, so boot and probe read the same as on a connection of their own. A frame is a line
``TO KIND NUMBER`` and, for all kinds but two, that many bytes:

====  ==========================================================================
d     data for these nodes
k     data to keep, as the next in a list; sent once for what many need
u     what was kept as number NUMBER is for these nodes
e     the end of input for these nodes
r     32 hexadecimal digits: make the room that is named so, and say so
f     JSON ``{"size", "sha256"}``: what is to be kept next is in the room now; take it and say
      so. ``null``: nothing will come
====  ==========================================================================

TO is ``*`` or ranges of the nodes' numbers, ``0-3,7``, as in the list given to `start`.

The room is a directory of this user's under /tmp, into which Slurm's sbcast writes one file on all
nodes. It is there for no longer than that takes.

This file is sent with `PARTS` and stands alone, like `boot.py`: nothing of the probe is here yet.
"""

import atexit
import hashlib
import json
import os
import re
import stat
import sys
import threading
from typing import Any, BinaryIO, Dict, List, Optional, Sequence

from .rooms import FILE, ROOM, remove_room

PARTS = ("hangtop_probe/wire/rooms.py", "hangtop_probe/wire/relay.py")
"""Files that are sent, in this order, without the imports of one another."""
MAGIC = b"\x1eHT1 "  # as in wire.py, which is not here yet
MAX_FILE = 64 << 20
"""Most bytes of a file sent by sbcast; py-spy has 3 MB."""
_TOKEN = re.compile(r"[0-9a-f]{32}")


def names_me(to: str, own: int) -> bool:
    """Whether ``to`` holds this node's number."""
    if to == "*":
        return True
    for span in to.split(","):
        first, _, last = span.partition("-")
        if int(first) <= own <= int(last or first):
            return True
    return False


class Relay:
    """Passes on this node's share of the frames."""

    def __init__(self, source: BinaryIO, sink: int, own: int, out: int) -> None:
        """``out``: descriptor for messages to the head about rooms."""
        self.room: Optional[str] = None
        self._source = source
        self._sink = sink
        self._own = own
        self._out = out
        self._kept: List[Optional[bytes]] = []

    def run(self) -> None:
        """Write this node's share to the sink.

        Returns at the end of input, of this node's input, or when the sink is closed.
        """
        try:
            while self._frame():
                pass
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            return
        finally:
            self.leave_room()
            os.close(self._sink)

    def _frame(self) -> bool:
        """Take one frame; say whether there may be another."""
        words = self._source.readline().decode("ascii").split()
        if len(words) != 3:
            return False
        to, kind, number = words[0], words[1], int(words[2])
        data = b""
        if kind in "dkrf":
            data = self._source.read(number)
            if len(data) != number:
                return False
        if kind == "k":
            self._kept.append(data)
        elif kind == "r":
            self._make_room(data.decode("ascii"))
        elif kind == "f":
            self._take(json.loads(data.decode("ascii")))
        elif names_me(to, self._own):
            if kind == "e":
                return False
            view = memoryview((self._kept[number] or b"") if kind == "u" else data)
            while view:
                view = view[os.write(self._sink, view) :]
        return True

    def _make_room(self, token: str) -> None:
        if not _TOKEN.fullmatch(token):
            raise ValueError("no token")
        try:
            os.mkdir(ROOM + token, 0o700)
            self.room = ROOM + token
        except OSError as error:
            self._say(room=None, why="%s%s: %s" % (ROOM, token, error.strerror))
            return
        self._say(room=os.environ.get("SLURM_STEP_ID"))

    def _take(self, told: Any) -> None:
        data: Optional[bytes] = None
        more: Dict[str, Any] = {"kept": len(self._kept)}
        try:
            if told is not None:
                data = fetch(self.room, told["size"], told["sha256"])
        except (OSError, ValueError) as error:
            more["why"] = str(error)[:200]
        self.leave_room()
        self._kept.append(data)
        if told is not None:
            self._say(**more)

    def _say(self, **more: Any) -> None:
        line = json.dumps(dict({"id": 0, "relay": self._own}, **more))
        os.write(self._out, MAGIC + line.encode("ascii") + b"\n")

    def leave_room(self) -> None:
        """Remove the room, if there is one. May be called by two threads."""
        room, self.room = self.room, None
        if room is not None:
            remove_room(room)


def fetch(room: Optional[str], size: int, digest: str) -> bytes:
    """Return the file in a room; raise ValueError or OSError where it is not what was sent."""
    if room is None or not 0 <= size <= MAX_FILE:
        raise ValueError("there is no room here")
    # Not blocking: what lies there may be a pipe.
    fd = os.open(os.path.join(room, FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError("the file in %s is not ours" % room)
        data = file.read(size + 1) if found.st_size == size else b""
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("the file in %s is not what was sent" % room)
    return data


def start(stream: BinaryIO, nodes: Sequence[str]) -> BinaryIO:
    """Start relaying, report which of ``nodes`` this one is, and return the new standard input.

    ``stream`` is the old one; it may have read ahead.
    """
    name = os.environ.get("SLURMD_NODENAME") or os.uname()[1]
    if name not in nodes:
        sys.stderr.write("%s is none of the nodes that were asked for\n" % name[:100])
        sys.exit(5)
    own = nodes.index(name)
    real = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    ahead = stream.read()  # its buffer; standard input is /dev/null now
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    os.environ["HANGTOP_SHORT_LINES"] = "1"
    os.write(1, MAGIC + json.dumps({"id": 0, "relay": own}).encode("ascii") + b"\n")
    source = os.fdopen(real, "rb")
    if ahead:
        source = _Ahead(ahead, source)  # type: ignore[assignment]
    # A descriptor of its own: the probe gives 1 to something else.
    relay = Relay(source, write_end, own, os.dup(1))
    atexit.register(relay.leave_room)
    threading.Thread(target=relay.run, daemon=True).start()
    return os.fdopen(os.dup(0), "rb")


class _Ahead:
    """A stream preceded by bytes that were read already."""

    def __init__(self, ahead: bytes, stream: BinaryIO) -> None:
        self._ahead = ahead
        self._stream = stream

    def readline(self) -> bytes:
        """Return one line."""
        line, newline, rest = self._ahead.partition(b"\n")
        self._ahead = rest
        return line + newline if newline else line + self._stream.readline()

    def read(self, count: int) -> bytes:
        """Return ``count`` bytes, less only at the end."""
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        if len(data) < count:
            data += self._stream.read(count - len(data))
        return data
