"""What comes before the boot where one command serves many nodes: picks out this node's share.

A broadcast srun gives all its nodes the same standard input, and labels what each prints. The
head sends this file's source first, with a call of `start` behind it. From then on standard input
is frames, each for some of the nodes; a thread hands those for this node on to a pipe that takes
the place of standard input, so boot and probe read what they would read on a connection of their
own. A frame is a line ``TO KIND NUMBER`` and, for the kinds with data, that many bytes:

====  ==========================================================================
d     NUMBER bytes for these nodes
k     NUMBER bytes to keep, as the next in a list; sent once for what many need
u     what was kept as number NUMBER is for these nodes
e     the end of input for these nodes
====  ==========================================================================

TO is ``*`` or ranges of the nodes' numbers, ``0-3,7``, as in the list given to `start`.

This file stands alone, like `boot.py`: nothing of the probe is here yet.
"""

import json
import os
import sys
import threading
from typing import BinaryIO, List, Sequence

MAGIC = b"\x1eHT1 "  # as in wire.py, which is not here yet


def names_me(to: str, own: int) -> bool:
    """Whether ``to`` holds this node's number."""
    if to == "*":
        return True
    for span in to.split(","):
        first, _, last = span.partition("-")
        if int(first) <= own <= int(last or first):
            return True
    return False


def hand_on(source: BinaryIO, sink: int, own: int) -> None:
    """Write this node's share of the frames of ``source`` to ``sink``, until it is told to end.

    Returns at the end of input, of this node's input, or when nobody reads ``sink`` any more.
    """
    kept: List[bytes] = []
    try:
        while True:
            words = source.readline().decode("ascii").split()
            if len(words) != 3:
                return
            to, kind, number = words[0], words[1], int(words[2])
            data = b""
            if kind in "dk":
                data = source.read(number)
                if len(data) != number:
                    return
            if kind == "k":
                kept.append(data)
            elif names_me(to, own):
                if kind == "e":
                    return
                view = memoryview(kept[number] if kind == "u" else data)
                while view:
                    view = view[os.write(sink, view) :]
    except (OSError, ValueError, IndexError):
        return
    finally:
        os.close(sink)


def start(stream: BinaryIO, nodes: Sequence[str]) -> BinaryIO:
    """Begin to hand on, say which of ``nodes`` this one is, and return the new standard input.

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
    ahead = stream.read()  # what it has buffered: beyond that there is /dev/null now
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    os.environ["HANGTOP_SHORT_LINES"] = "1"
    os.write(1, MAGIC + json.dumps({"id": 0, "relay": own}).encode("ascii") + b"\n")
    source = os.fdopen(real, "rb")
    if ahead:
        source = _Ahead(ahead, source)  # type: ignore[assignment]
    worker = threading.Thread(target=hand_on, args=(source, write_end, own), daemon=True)
    worker.start()
    return os.fdopen(os.dup(0), "rb")


class _Ahead:
    """A stream with some bytes before it that were read already."""

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
