"""The probe's own modules for what it starts, wherever they are: in files, or only in memory."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
import zipfile
from typing import Any, Dict, List, Optional

PACKAGE = "hangtop_probe"
_lock = threading.Lock()
_kept: Optional[Any] = None
"""The file that holds the modules, where they are in memory; open as long as the probe runs."""


def python(code: str) -> List[str]:
    """Return the command that runs ``code`` with the probe's modules, and nothing else of ours."""
    text = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, %r); %s"
    return [sys.executable, "-I", "-S", "-c", text % (_place(), code)]


def in_memory() -> Optional[Dict[str, bytes]]:
    """Return the modules by their paths where they are only in memory, see `pieces.Memory`."""
    loader = getattr(sys.modules[PACKAGE].__spec__, "loader", None)
    files: Optional[Dict[str, bytes]] = getattr(loader, "files", None)
    return files


def folder() -> str:
    """Return the directory that holds the package, where that is in files."""
    return os.path.dirname(os.path.dirname(os.path.abspath(str(sys.modules[PACKAGE].__file__))))


def source(path: str) -> bytes:
    """Return the text of a module by its path, which begins with the package.

    Raises KeyError or OSError where it did not come along.
    """
    files = in_memory()
    if files is not None:
        return files[path[len(PACKAGE) + 1 :]]
    with open(os.path.join(folder(), path), "rb") as file:
        return file.read()


def _place() -> str:
    """The directory that holds the package, or a zip file with its sources that has no name."""
    global _kept
    files = in_memory()
    if files is None:
        return folder()
    with _lock:
        if _kept is None:
            _kept = _zipped(files)
        return "/proc/%d/fd/%d" % (os.getpid(), _kept.fileno())


def _zipped(files: Dict[str, bytes]) -> Any:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in files.items():
            archive.writestr("%s/%s" % (PACKAGE, name), source)
    # Not deleted by name from a directory others can see: it never had one where memfd is there.
    if hasattr(os, "memfd_create"):
        made: Any = os.fdopen(os.memfd_create("hangtop"), "w+b")
    else:
        made = tempfile.TemporaryFile()  # noqa: SIM115  # it stays open
    made.write(data.getvalue())
    made.flush()
    return made
