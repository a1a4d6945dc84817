"""How much a process prints: by the positions in its standard output and error."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from . import procfs


class Printed(NamedTuple):
    """How far the files behind descriptors 1 and 2 of a process have grown."""

    places: Tuple[int, ...]
    """Positions of the two, as the kernel keeps them: no file system is touched."""
    total: int = 0
    """Bytes by which they have moved since the first look in rounds in which the process wrote."""
    main: int = 0
    """Of these, those of rounds in which the main thread wrote as well."""
    wrote: Optional[int] = None
    """wchar of the main thread alone, /proc/PID/task/PID/io."""
    whole: Optional[int] = None
    """wchar of the process: several may have one open file, and who wrote nothing did not print."""

    @classmethod
    def after(cls, old: "Optional[Printed]", pid: int, whole: Optional[int]) -> "Printed":
        """Look again, when all of its threads have written so much."""
        found = [procfs.read("/proc/%d/fdinfo/%d" % (pid, fd), 512) or b"" for fd in (1, 2)]
        # Where both are one open file, both say the same.
        places = tuple(sorted({procfs.value_of(one, b"pos") or 0 for one in found}))
        if old is not None and whole in (None, old.whole):
            return old._replace(places=places)
        io = procfs.read("/proc/%d/task/%d/io" % (pid, pid)) or b""
        wrote = procfs.value_of(io, b"wchar")
        if old is None:
            return cls(places, 0, 0, wrote, whole)
        moved = max(sum(places) - sum(old.places), 0)
        # Nobody has printed more than it wrote.
        grown, main = (
            min(moved, max((now or 0) - (then or 0), 0))
            for now, then in ((whole, old.whole), (wrote, old.wrote))
        )
        return cls(places, old.total + grown, old.main + main, wrote, whole)
