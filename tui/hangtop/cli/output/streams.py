"""The standard streams, when they are closed or cannot be written."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys


def open_standard_streams() -> None:
    """Put /dev/null in place of standard streams that are closed (`>&-`).

    Python has None for them, and the next file or socket that is opened would get their number.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _to_null(descriptor)
            mode = "w" if descriptor else "r"
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if type(sys.stdout) is io.TextIOWrapper:
        sys.stdout.reconfigure(errors="replace")  # for characters that the locale does not have
    if type(sys.stderr) is io.TextIOWrapper:  # not a replacement by a test or a notebook
        raw = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115
        sys.stderr = Notes(raw, sys.stderr.encoding, "backslashreplace", write_through=True)


def _to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    os.set_inheritable(descriptor, True)  # dup2 does not do so where both are the same
    if null != descriptor:
        os.close(null)


def drop_stdout() -> None:
    """Send pending output to /dev/null: writing it would fail again when Python exits."""
    _to_null(1)


class Notes(io.TextIOWrapper):
    """Standard error that ignores write errors, as they are no reason to lose the result."""

    def write(self, text: str) -> int:
        """Write a text; after the first error write nothing more."""
        try:
            return super().write(text)
        except OSError:
            _to_null(2)
            return len(text)

    def flush(self) -> None:
        """Write the pending text, or drop it."""
        try:
            super().flush()
        except OSError:
            _to_null(2)


def check_stdout() -> None:
    """Check early whether the output can be written.

    Raises:
        OSError: it cannot, or it is a file on a full disk.
    """
    os.write(1, b"")
    disk = os.fstatvfs(1)
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    if stat.S_ISREG(os.fstat(1).st_mode) and disk.f_blocks and not free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
