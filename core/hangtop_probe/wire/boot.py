"""The first code on a node: finds or receives the pieces the probe needs, then starts it.

The head sends the source of `PARTS` over stdin, as one text with a call of `main` behind it, to
``python3 -I -S -u -c BOOT``. It says what the node already has (at the head's
own paths where the file system is shared, or in the cache of this user), receives the rest, and
checks every byte against its hash.

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
"""Files that are sent, in this order, without the imports of one another."""
MAGIC = b"\x1eHT1 "  # as in wire.py, which is not here yet
OLDEST = (3, 8)
GIVE_UP_S = 180
"""Seconds after which a waiting boot ends, because the head has gone without closing."""
BOOT = (
    "import sys,zlib;r=sys.stdin.buffer;"
    "exec(compile(zlib.decompress(r.read(int(r.readline()))),'hangtop','exec'))"
)
"""The program for the node's shell. It has no `$`, `!`, backtick or double quote, which are special
in some users' shells."""
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
    base, why = _cache(wanted)
    whys = [why]  # without a directory, the reason for that is the first
    pieces: List[Tuple[str, Any]] = [
        (name, kind(wanted[name])) for name, kind in CLASSES if wanted.get(name)
    ]
    missing = [one for one in pieces if not one[1].find(base)]
    if push is None:
        say(dict(have, missing=[name for name, _ in missing]))
    else:
        missing = _carried(missing)
    try:
        for _, piece in missing:
            whys.append(piece.take(receive(stream), base))
    except (EOFError, ValueError, zlib.error) as error:
        say(dict(have, error="damaged", text=str(error)[:200]))
        return 4
    why = next(filter(None, whys), None)
    done = {name: piece.where for name, piece in pieces}
    say(dict(have, done=done, why=why))
    _hand_over(dict(pieces), base=base, sent=[name for name, _ in missing], done=done, why=why)
    signal.alarm(0)
    from hangtop_probe.__main__ import main as probe

    return probe([], push)


def _cache(wanted: Dict[str, Any]) -> Tuple[Optional[str], Optional[str]]:
    """Return the cache directory, or None and the reason."""
    try:
        return cache_base() if wanted.get("keep", True) else None, None
    except Unusable as error:
        return None, str(error)


def _carried(missing: List[Tuple[str, Any]]) -> List[Tuple[str, Any]]:
    """Return the pieces that are in the argument, and note why the others are not."""
    for name, piece in missing:
        if name != "probe":
            piece.why = "an argument cannot carry it; one hangtop over ssh leaves it there"
    return [one for one in missing if one[0] == "probe"]


def _hand_over(pieces: Dict[str, Any], **told: Any) -> None:
    """Put the facts about the pieces into the environment, for the probe."""
    py_spy, nvml = pieces.get("py-spy"), pieces.get("pynvml")
    why = py_spy.why if py_spy else "the head has no py-spy to send"
    if why:
        os.environ["HANGTOP_NO_PY_SPY"] = why
    if nvml:
        told["pynvml"] = {"entry": nvml.entry, "hash": nvml.hash, "why": nvml.why}
    told["own"] = [piece.hash for piece in pieces.values()]
    os.environ["HANGTOP_BOOT"] = json.dumps(told)  # for the probe's cache.py
