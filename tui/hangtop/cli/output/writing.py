"""Checks that a command's output can be written, made before anything is observed."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean

STDOUT = "-"
"""The standard output, as the name of a file."""
BLOCK = 4096
"""Bytes written as a test: a full disk may still allow new empty files."""


def check_file(path: str, option: str = "--output") -> None:
    """Check that a file can be written, or overwritten.

    Raises:
        UsageError: it cannot.
    """
    _check_name(path, option)
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            with open(path, "ab"):
                return
        if not stat.S_ISDIR(status.st_mode):
            return  # a pipe, whose reader may start later, or a device
        why = "it is a folder"
    except FileNotFoundError:
        check_folder(Path(path).parent, option)
        return
    except OSError as error:
        why = str(error.strerror)
    raise UsageError(f"{option} {clean(path, 300)}: {why}")


def check_new(path: str, option: str = "--output") -> None:
    """Check that a new file can be written.

    Raises:
        UsageError: it exists, or cannot be written.
    """
    _check_name(path, option)
    try:
        os.lstat(path)
    except FileNotFoundError:
        check_folder(Path(path).parent, option)
        return
    except OSError as error:
        raise UsageError(f"{option} {clean(path, 300)}: {error.strerror}") from error
    raise UsageError(f"{option} {clean(path, 300)}: it is there already, and is not overwritten")


def _check_name(path: str, option: str) -> None:
    """Check that a path can name a file, unlike `-o "$UNSET"` and `-o new/`."""
    if not os.path.basename(path) and not os.path.isdir(path):
        raise UsageError(f"{option} {clean(path, 300)!r}: it names no file")


def check_folder(folder: Path, option: str = "--output") -> None:
    """Check that a new file can be written to a folder.

    Raises:
        UsageError: it cannot.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".hangtop-") as file:
            file.write(bytes(BLOCK))
            file.flush()
    except OSError as error:
        if not folder.is_dir():
            what = f"{option}: there is no folder {clean(str(folder), 300)}"
            raise UsageError(what) from None
        what = f"{option}: cannot write to {clean(str(folder), 300)}: {error.strerror}"
        raise UsageError(what) from error
