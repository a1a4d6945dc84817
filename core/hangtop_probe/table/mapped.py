"""Check whether a process has libraries of torch or of Python mapped."""

from __future__ import annotations

from typing import Sequence

from ..proc import procfs
from ..ranks import versions
from ..wire.guard import Guard, Hanging

_LIBRARIES = (b"libtorch_python", b"libtorch_cpu")
_GUARD = Guard()


def has_torch(pid: int) -> bool:
    """Whether libtorch is mapped into a process."""
    return _has_mapped(pid, _LIBRARIES)


def embeds_python(pid: int) -> bool:
    """Whether a library of Python is mapped into a program that is no interpreter itself."""
    return _has_mapped(pid, (b"/libpython",))


def _has_mapped(pid: int, names: Sequence[bytes]) -> bool:
    """Whether a file of these names is mapped; guarded, as its memory lock may be held for ever."""
    try:
        maps = _GUARD.call(lambda: procfs.read_all("/proc/%d/maps" % pid, versions.MAX_MAPS))
    except Hanging:
        return False
    return any(name in (maps or b"") for name in names)
