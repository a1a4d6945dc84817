"""Read the versions of Python, torch, CUDA and NCCL that a rank runs, without touching it.

The libraries a process has mapped show where its torch is installed; files beside them have the
version. Nothing is run and nothing in the rank is asked. Sources:

- python: the name of the interpreter, /proc/PID/exe, else of a mapped libpython.
- torch, cuda: torch/version.py beside the mapped libtorch (torch 1.x to 2.13 write it so).
- nccl: the name of the mapped libnccl.so.2.27.5, or of its wheel's folder beside torch's,
  nvidia_nccl_cu12-2.27.5.dist-info.

Files are read from local file systems only: a server that is gone would hang the reader. A torch
on a network file system is reported by its folder instead (`torch_folder`), which compares nodes as
well: one folder of one server is one version.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Optional, Sequence

from ..files import localpath
from ..proc import procfs

MAX_MAPS = 8 << 20
MAX_FILE = 64 << 10

# The path of a line begins with its first slash: looked for anywhere, it would cost cubic time.
_TORCH = re.compile(
    rb"^[^/\n]*(/[^\n]*/torch)/lib/libtorch(?:_cpu|_cuda|_python)?\.so", re.MULTILINE
)
_NCCL = re.compile(rb"^[^/\n]*(/[^\n]*/libnccl\.so[^\n/ ]*)", re.MULTILINE)
_PYTHON = re.compile(r"python(\d\.\d+)")
_WHEEL = re.compile(r"nvidia_nccl_cu\d+-([0-9][0-9.]*)\.dist-info")
_ASSIGNED = re.compile(
    r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]([^'\"\n]{1,80})['\"]", re.MULTILINE
)
_NAMES = {"__version__": "torch", "cuda": "cuda", "hip": "hip"}


def read(pid: int) -> Dict[str, str]:
    """Return the known versions by name; empty as long as the process has not loaded torch."""
    maps = procfs.read_all("/proc/%d/maps" % pid, MAX_MAPS) or b""
    folder = _mapped(_TORCH, maps)
    if folder is None:
        return {}
    mounts = procfs.mounts(str(pid))
    found = _torch(pid, folder, mounts)
    python = _python(procfs.link("/proc/%d/exe" % pid) or "") or _python(procfs.text(maps))
    if python is not None:
        found["python"] = python
    library = _mapped(_NCCL, maps)
    known = _nccl(pid, library, folder, mounts) if library is not None else None
    if known is not None:
        found["nccl"] = known
    return found


def nccl(pid: int) -> Optional[str]:
    """Return the version of the NCCL a process has mapped, even without torch, or None."""
    maps = procfs.read_all("/proc/%d/maps" % pid, MAX_MAPS) or b""
    library = _mapped(_NCCL, maps)
    if library is None:
        return None
    mounts = procfs.mounts(str(pid))
    return _nccl(pid, library, _mapped(_TORCH, maps), mounts)


def parse_version_file(text: str) -> Dict[str, str]:
    """Parse torch/version.py: `__version__ = '2.13.0+cpu'`, `cuda: Optional[str] = '12.8'`."""
    return {_NAMES[name]: value for name, value in _ASSIGNED.findall(text)}


def _mapped(pattern: "re.Pattern[bytes]", maps: bytes) -> Optional[str]:
    match = pattern.search(maps)
    return procfs.text(match[1]) if match else None


def _python(text: str) -> Optional[str]:
    match = _PYTHON.search(os.path.basename(text) if "\n" not in text else text)
    return match[1] if match else None


def _torch(pid: int, folder: str, mounts: Sequence[procfs.Mount]) -> Dict[str, str]:
    path = localpath.of(pid, folder + "/version.py", mounts)
    data = procfs.read_all(path, MAX_FILE) if path is not None else None
    found = parse_version_file(procfs.text(data)) if data is not None else {}
    return found if "torch" in found else {"torch_folder": folder}


def _nccl(
    pid: int, library: str, folder: Optional[str], mounts: Sequence[procfs.Mount]
) -> Optional[str]:
    """Return the version in a library's own name, or in that of its wheel."""
    named = os.path.basename(library).partition(".so.")[2]
    if named.count(".") >= 1:
        return named
    if folder is None:
        return None
    site = localpath.of(pid, os.path.dirname(folder), mounts)
    try:
        names = os.listdir(site) if site is not None else []
    except OSError:
        return None
    return next((match[1] for match in map(_WHEEL.fullmatch, names) if match), None)
