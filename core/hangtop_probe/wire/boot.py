"""The first code that runs on a node: finds or receives what the probe needs, then starts it.

The head sends the source of `PARTS` over stdin, as one text with a call of `main` behind it, to
``python3 -I -S -u -c BOOT``. It says what the node already has (at the head's
own paths where the file system is shared, or in the cache of this user), receives the rest, and
checks every byte against the hash it was told.

The text stands alone: it imports nothing of the probe until that is in place. It is written so
that a Python that is too old for the probe can still read it, and say so.
"""

import json
import os
import platform
import signal
import sys
import zlib
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from .cachedir import Unusable, cache_base
from .pieces import Probe, Pynvml, PySpy

PARTS = (
    "hangtop_probe/wire/cachedir.py",
    "hangtop_probe/wire/pieces.py",
    "hangtop_probe/wire/boot.py",
)
"""What is sent, in this order; the imports from one another are left out."""
MAGIC = b"\x1eHT1 "  # as in wire.py, which is not here yet
OLDEST = (3, 8)
GIVE_UP_S = 180
"""Seconds after which a boot that got no further ends: its head is gone, and nobody said so."""
BOOT = (
    "import sys,zlib;r=sys.stdin.buffer;"
    "exec(compile(zlib.decompress(r.read(int(r.readline()))),'hangtop','exec'))"
)
"""What the node's shell is told to run. No `$`, `!`, backtick or double quote: those mean
something in one of the shells a user may have."""
CLASSES = (("probe", Probe), ("py-spy", PySpy), ("pynvml", Pynvml))


def say(message: Dict[str, Any]) -> None:
    """Write one message to the head."""
    line = MAGIC + json.dumps({"id": 0, "boot": message}).encode("ascii") + b"\n"
    while line:
        line = line[os.write(1, line) :]


def receive(stream: BinaryIO) -> bytes:
    """Read one block: its length on a line, then that many bytes of zlib."""
    length = int(stream.readline())
    data = stream.read(length)
    if len(data) != length:
        raise EOFError("the head went away")
    return zlib.decompress(data)


def main(wanted: Dict[str, Any], stream: BinaryIO) -> int:
    """Get everything in place, then be the probe. Called by the line the head adds.

    With ``wanted["push"]`` the probe is in ``stream`` in any case, and nothing comes after it.
    """
    push = wanted.get("push")
    signal.alarm(GIVE_UP_S)
    have = {"python": platform.python_version(), "arch": platform.machine()}
    if sys.version_info < OLDEST:
        say(dict(have, error="old-python", path=sys.executable))
        return 3
    base: Optional[str] = None
    why: Optional[str] = None
    try:
        base = cache_base() if wanted.get("keep", True) else None
    except Unusable as error:
        why = str(error)
    pieces: List[Tuple[str, Any]] = [
        (name, kind(wanted[name])) for name, kind in CLASSES if wanted.get(name)
    ]
    missing = [one for one in pieces if not one[1].find(base)]
    if push is None:
        say(dict(have, missing=[name for name, _ in missing]))
    else:
        for name, piece in missing:
            if name != "probe":
                piece.why = "an argument cannot carry it; one hangtop over ssh leaves it there"
        missing = [one for one in missing if one[0] == "probe"]
    try:
        for _, piece in missing:
            failed = piece.take(receive(stream), base)
            why = why or failed  # without a directory, the reason for that
    except (EOFError, ValueError, zlib.error) as error:
        say(dict(have, error="damaged", text=str(error)[:200]))
        return 4
    found: Dict[str, Any] = dict(pieces)
    if "py-spy" not in found:
        os.environ["HANGTOP_NO_PY_SPY"] = "the head has no py-spy to send"
    elif found["py-spy"].why:
        os.environ["HANGTOP_NO_PY_SPY"] = found["py-spy"].why
    done = {name: piece.where for name, piece in pieces}
    say(dict(have, done=done, why=why))
    own = [piece.hash for _, piece in pieces]
    sent = [name for name, _ in missing]
    told: Dict[str, Any] = {"base": base, "own": own, "sent": sent, "done": done, "why": why}
    if "pynvml" in found:
        nvml = found["pynvml"]
        told["pynvml"] = {"entry": nvml.entry, "hash": nvml.hash, "why": nvml.why}
    os.environ["HANGTOP_BOOT"] = json.dumps(told)  # for the probe's cache.py
    signal.alarm(0)
    from hangtop_probe.__main__ import main as probe

    return probe([], push)
