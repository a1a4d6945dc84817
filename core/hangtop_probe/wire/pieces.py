"""The pieces a node needs: the probe's source, py-spy, and the Python bindings of NVML.

Each is used from the head's own path where the file system is shared, from the cache of this user,
or, where that cannot be used (no home, a full disk, a directory of another user, a file system
mounted noexec), from memory for this connection. This file is sent as a part of the boot, see
`boot.PARTS`.
"""

import errno
import hashlib
import os
import platform
import sys
from importlib.util import spec_from_loader
from typing import Any, Dict, List, Optional

from .cachedir import (
    Files,
    Unusable,
    check_trusted,
    entries,
    file_hash,
    keep,
    own_directory,
    packed_hash,
    runs_programs,
    tree_hash,
    unpack,
)

NVML = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "/usr/lib/%s-linux-gnu" % platform.machine(),
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
"""Where the driver's libraries are: Debian, Fedora, WSL, Kubernetes' device plugin, NixOS."""


class Probe:
    """The probe's source: a package directory, on the head's path, in the cache or in memory."""

    def __init__(self, wanted: Dict[str, Any]) -> None:
        self.hash = wanted["hash"]
        self.path = wanted["path"]
        self.package = "hangtop_probe"
        self.where: Optional[str] = None

    def find(self, base: Optional[str]) -> bool:
        """Say whether it is here already, and as it should be."""
        places = [("shared", os.path.join(self.path, self.package))]
        if base is not None:
            places.append(("cache", os.path.join(base, self.hash, self.package)))
        for where, named in places:
            place = os.path.realpath(named)
            try:
                # What is above, too: other modules are looked for there, first of all.
                check_trusted(os.path.dirname(place), place, *entries(place))
                if tree_hash(place) == self.hash:
                    sys.path.insert(0, os.path.dirname(place))
                    sys.dont_write_bytecode = where == "shared"
                    self.where = where
                    return True
            except (OSError, Unusable):
                continue
        return False

    def take(self, block: bytes, base: Optional[str]) -> Optional[str]:
        """Keep what was sent; return why it could not be kept on disk, or None."""
        files = unpack(block)
        if packed_hash(files) != self.hash:
            raise ValueError("the probe's source arrived damaged")
        why = "no cache directory"
        if base is not None:
            try:
                root = os.path.join(base, self.hash)
                if os.path.lexists(root):
                    own_directory(root)
                else:
                    os.mkdir(root, 0o700)
                keep(root, self.package, files, 0o600)
                if self.find(base):
                    return None
                why = "what was written does not read back"
            except (OSError, Unusable) as error:
                why = str(error)
        sys.meta_path.insert(0, Memory(self.package, files))
        self.where = "memory"
        return why


class Memory:
    """Imports the modules of one package from memory."""

    def __init__(self, package: str, files: Files) -> None:
        self.package = package
        self.files = files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module of the package, as importlib asks for it."""
        if name != self.package and not name.startswith(self.package + "."):
            return None
        file = self._file(name)
        if file not in self.files:
            return None
        loader: Any = self
        return spec_from_loader(name, loader, is_package=file.endswith("__init__.py"))

    def _file(self, name: str) -> str:
        """Return the path of a module in the package, or of the package that it is."""
        place = "/".join(name.split(".")[1:])
        package = (place + "/__init__.py").lstrip("/")
        return package if package in self.files else place + ".py"

    def create_module(self, spec: Any) -> None:
        """Make modules in the ordinary way."""

    def exec_module(self, module: Any) -> None:
        """Run a module's source."""
        name = self._file(module.__spec__.name)
        code = compile(self.files[name], "<hangtop_probe>/" + name, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102  # what the head sent, its hash checked


class PySpy:
    """The py-spy program: at the head's path, in the cache, or in memory."""

    def __init__(self, wanted: Dict[str, Any]) -> None:
        self.hash = wanted["hash"]
        self.path = wanted["path"]
        self.arch = wanted["arch"]
        self.where: Optional[str] = None
        self.why: Optional[str] = None

    def find(self, base: Optional[str]) -> bool:
        """Say whether it is here already, or cannot run here."""
        if platform.machine() != self.arch:
            self.why = "this node is %s, and the py-spy at hand is for %s" % (
                platform.machine(),
                self.arch,
            )
            return True
        places = [("shared", self.path)]
        if base is not None:
            places.append(("cache", os.path.join(base, self.hash, "py-spy")))
        for where, named in places:
            place = os.path.realpath(named)
            try:
                check_trusted(os.path.dirname(place), place)
                if runs_programs(place) and file_hash(place) == self.hash:
                    self._use(where, place)
                    return True
            except (OSError, Unusable):
                continue
        return False

    def _use(self, where: str, place: str) -> None:
        os.environ["HANGTOP_PY_SPY"] = place
        self.where = where

    def take(self, block: bytes, base: Optional[str]) -> Optional[str]:
        """Keep what was sent; return why it could not be kept on disk, or None."""
        if hashlib.sha256(block).hexdigest() != self.hash:
            raise ValueError("py-spy arrived damaged")
        why = "no cache directory"
        if base is not None:
            try:
                if not runs_programs(base):
                    raise Unusable("%s is mounted noexec" % base)
                kept = keep(base, self.hash, {"py-spy": block}, 0o700)
                self._use("cache", os.path.join(kept, "py-spy"))
                return None
            except (OSError, Unusable) as error:
                why = str(error)
        try:
            fd = _memory_file("py-spy")
            view = memoryview(block)
            while view:
                view = view[os.write(fd, view) :]
            self._use("memory", "/proc/%d/fd/%d" % (os.getpid(), fd))
        except OSError as error:
            self.why = "%s; and no memory file can be had: %s" % (why, error.strerror)
        return why


class Pynvml:
    """The Python bindings of NVML, one module: only for nodes that have NVML itself."""

    def __init__(self, wanted: Dict[str, Any]) -> None:
        self.hash = wanted["hash"]
        self.path = wanted["path"]
        self.where: Optional[str] = None
        self.why: Optional[str] = None
        self.entry: Optional[str] = None
        """What to put on sys.path: a directory or, in memory, a zip file."""

    def find(self, base: Optional[str]) -> bool:
        """Say whether it is here already, or of no use here."""
        if not any(os.path.exists(place) for place in nvml_places()):
            self.why = "no %s on this node" % NVML
            return True
        places = [("shared", os.path.dirname(self.path))]
        if base is not None:
            places.append(("cache", os.path.join(base, self.hash)))
        for where, named in places:
            folder = os.path.realpath(named)
            if is_pynvml(folder, self.hash):
                self.where, self.entry = where, folder
                return True
        return False

    def take(self, block: bytes, base: Optional[str]) -> Optional[str]:
        """Keep what was sent; return why it could not be kept on disk, or None."""
        if hashlib.sha256(block).hexdigest() != self.hash:
            raise ValueError("pynvml arrived damaged")
        why = "no cache directory"
        if base is not None:
            try:
                self.entry = keep(base, self.hash, {"pynvml.py": block}, 0o600)
                self.where = "cache"
                return None
            except (OSError, Unusable) as error:
                why = str(error)
        try:
            import zipfile  # takes longer to import than all the rest, and is hardly ever needed

            fd = _memory_file("pynvml")
            with os.fdopen(os.dup(fd), "wb") as file, zipfile.ZipFile(file, "w") as packed:
                packed.writestr("pynvml.py", block)
            self.where, self.entry = "memory", "/proc/%d/fd/%d" % (os.getpid(), fd)
        except OSError as error:
            self.why = "%s; and no memory file can be had: %s" % (why, error.strerror)
        return why


def _memory_file(name: str) -> int:
    """Open a file that is nowhere on disk; raise OSError where there are none of those.

    A Python that was built for an older C library, as those of conda are, does not know them.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.memfd_create(name)


def nvml_places() -> List[str]:
    """Return where the loader (ld.so(8)) may find NVML. Nothing is loaded: that may hang."""
    folders = (os.environ.get("LD_LIBRARY_PATH") or "").split(":") + list(_LIBRARY_FOLDERS)
    places = [os.path.join(folder, NVML) for folder in folders if os.path.isabs(folder)]
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            known = file.read(8 << 20)
    except OSError:
        known = b""
    return places + listed(known)


def listed(known: bytes) -> List[str]:
    """Return the paths of NVML in a cache of the loader: texts that end with a zero."""
    end = b"/" + NVML.encode("ascii") + b"\0"
    found: List[str] = []
    at = known.find(end)
    while at >= 0 and len(found) < 16:
        start = known.find(b"/", max(at - 4096, known.rfind(b"\0", 0, at) + 1))
        found.append(known[start : at + len(end) - 1].decode("utf-8", "replace"))
        at = known.find(end, at + 1)
    return found


def is_pynvml(folder: str, wanted: str) -> bool:
    """Whether ``folder`` holds the pynvml with this hash, and no other user can change it."""
    place = os.path.join(folder, "pynvml.py")
    try:
        check_trusted(folder, place)
        return file_hash(place) == wanted
    except (OSError, Unusable):
        return False
