"""Starting Python with the probe's own modules, wherever those are: in files, or only in memory."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
import zipfile
from typing import Any, List, Optional

PACKAGE = "hangtop_probe"
_lock = threading.Lock()
_kept: Optional[Any] = None
"""The file that holds the modules, where they are in memory; open as long as the probe runs."""


def python(code: str) -> List[str]:
    """Return the command that runs ``code`` with the probe's modules, and nothing else of ours."""
    text = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, %r); %s"
    return [sys.executable, "-I", "-S", "-c", text % (_place(), code)]


def _place() -> str:
    """The directory that holds the package, or a zip file with its sources that has no name."""
    global _kept
    module = sys.modules[PACKAGE]
    files = getattr(getattr(module.__spec__, "loader", None), "files", None)
    if files is None:
        return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with _lock:
        if _kept is None:
            _kept = _zipped(files)
        return "/proc/%d/fd/%d" % (os.getpid(), _kept.fileno())


def _zipped(files: Any) -> Any:
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
