"""Where a child of the probe finds pynvml, the Python bindings of NVML.

A head whose node has NVML sends its own pynvml along (see `pieces.Pynvml`). The probe never imports
it: NVML may not return, so whoever asks it is a process of its own, see `nvmlread.py`.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import NamedTuple, Optional

from ..wire import cache, pieces

_IN_MEMORY = re.compile(r"/proc/(\d+)/fd/\d+")


class Place(NamedTuple):
    """Where pynvml is, or why it is not here; exactly one of the two is there."""

    entry: Optional[str]
    """A directory, or a zip file, to put at the end of sys.path."""
    why: Optional[str]


def find() -> Place:
    """Return where pynvml is, looked at and checked anew; call it before every child."""
    told = cache.booted()
    if not told:
        return _installed()
    known = told.get("pynvml")
    if not isinstance(known, dict):
        return Place(None, "the head has no pynvml to send")
    entry, wanted = known.get("entry"), known.get("hash")
    if not isinstance(entry, str) or not isinstance(wanted, str):
        return Place(None, str(known.get("why") or "pynvml was not sent"))
    memory = _IN_MEMORY.fullmatch(entry)
    if memory is not None and int(memory[1]) == os.getpid():
        return Place(entry, None)  # checked as it came, and nobody else can write to it
    if pieces.is_pynvml(entry, wanted):
        return Place(entry, None)
    return Place(None, "%s is not what was sent, or others can write to it" % entry)


def _installed() -> Place:
    """Where the probe runs from hangtop's own installation."""
    try:
        spec = find_spec("pynvml")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or os.path.basename(spec.origin) != "pynvml.py":
        return Place(None, "pynvml (of nvidia-ml-py) is not installed beside hangtop")
    return Place(os.path.dirname(spec.origin), None)
