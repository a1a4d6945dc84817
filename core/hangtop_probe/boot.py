"""The first code that runs on a node: finds or receives the probe and py-spy, then starts it.

The head sends this file's source over stdin, with a call of `main` behind it, to
``python3 -I -S -u -c BOOT``. It says what the node already has (at the head's own paths where the
file system is shared, or in the cache of this user), receives the rest, and checks every byte
against the hash it was told. What cannot be kept on disk (no home, a full disk, a directory of
somebody else's, a file system mounted noexec) is kept in memory for this connection.

This file stands alone: it imports nothing of the probe until that is in place. It is written so
that a Python that is too old for the probe can still read it, and say so.
"""

import errno
import hashlib
import json
import os
import platform
import shutil
import signal
import stat
import sys
import tempfile
import zlib
from importlib.util import spec_from_loader
from typing import Any, BinaryIO, Dict, List, Optional, Sequence, Tuple

Files = Dict[str, bytes]

MAGIC = b"\x1eHT1 "  # as in wire.py, which is not here yet
OLDEST = (3, 8)
GIVE_UP_S = 180
"""Seconds after which a boot that got no further ends: its head is gone, and nobody said so."""
BOOT = (
    "import sys,zlib;r=sys.stdin.buffer;"
    "exec(compile(zlib.decompress(r.read(int(r.readline()))),'hangtop','exec'))"
)
"""What the node's shell is told to run. No `$`, `!`, backtick or double quote: those mean
something in one of the shells a user may have."""


class Unusable(Exception):
    """A place cannot be used, and why."""


def tree_hash(package: str) -> str:
    """Return the SHA-256, in hex, over names and contents of the modules of a package."""
    return packed_hash(read_tree(package))


def read_tree(package: str) -> Files:
    """Return the modules of a package directory by file name, as bytes."""
    files: Files = {}
    for name in os.listdir(package):
        if name.endswith(".py"):
            with open(os.path.join(package, name), "rb") as file:
                files[name] = file.read()
    return files


def packed_hash(files: Files) -> str:
    """Return the SHA-256, in hex, over names and contents."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(("%s %d\n" % (name, len(files[name]))).encode("utf-8"))
        digest.update(files[name])
    return digest.hexdigest()


def file_hash(path: str) -> str:
    """Return the SHA-256, in hex, of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def pack(files: Files) -> bytes:
    """Join files to one block: a line of JSON with names and lengths, then the contents."""
    names = sorted(files)
    head = json.dumps([[name, len(files[name])] for name in names]).encode("utf-8")
    return head + b"\n" + b"".join(files[name] for name in names)


def unpack(block: bytes) -> Files:
    """Undo `pack`; names with a path in them are refused."""
    head, _, rest = block.partition(b"\n")
    files: Files = {}
    for name, length in json.loads(head.decode("utf-8")):
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError("bad file name")
        files[name], rest = rest[:length], rest[length:]
    return files


# The cache


def cache_path() -> str:
    """Return where the cache of this user is; raise `Unusable` where that is nowhere.

    The home is the one of the user we are, which under sudo is another than $HOME may say.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        try:
            import pwd

            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            home = os.environ.get("HOME") or ""
        if not os.path.isabs(home) or not os.path.isdir(home):
            raise Unusable("no home directory%s" % (home and ": there is no " + home))
        base = os.path.join(home, ".cache")
    return os.path.join(base, "hangtop")


def cache_base() -> str:
    """Return the cache directory, made if need be, once it is known to be safe.

    Raises `Unusable` with the reason otherwise.
    """
    own = cache_path()
    base = os.path.dirname(own)
    try:
        os.makedirs(base, 0o700, exist_ok=True)
        _check_owner(os.stat(base), base, (os.geteuid(), 0))
        return _own_directory(own)
    except OSError as error:
        raise Unusable("%s: %s" % (base, error.strerror)) from error


def _own_directory(path: str) -> str:
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Unusable("%s is no directory" % path)
    _check_owner(found, path, (os.geteuid(),))
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)
    return path


def _check_owner(found: os.stat_result, path: str, owners: Sequence[int]) -> None:
    if found.st_uid not in owners:
        raise Unusable("%s belongs to user id %d" % (path, found.st_uid))
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise Unusable("%s can be written by others" % path)


def check_trusted(*paths: str) -> None:
    """Raise `Unusable` where somebody else than we or root could change what is there."""
    for path in paths:
        found = os.stat(path)
        if found.st_uid not in (os.geteuid(), 0):
            raise Unusable("%s belongs to user id %d" % (path, found.st_uid))
        if found.st_mode & 0o022:
            raise Unusable("%s can be written by others" % path)


def keep(base: str, key: str, files: Files, mode: int) -> str:
    """Put files into ``base/key`` at once: a directory beside it that is then renamed."""
    target = os.path.join(base, key)
    work = tempfile.mkdtemp(prefix=".new-", dir=base)
    try:
        for name, content in files.items():
            fd = os.open(os.path.join(work, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
        if os.path.lexists(target):
            # It was there and was not what its name says; a racing boot may put it back first.
            os.rename(target, tempfile.mkdtemp(prefix=".old-", dir=base))
        os.rename(work, target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for name in os.listdir(base):
            if name.startswith(".old-"):
                shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    return target


# The two pieces


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
        for where, place in places:
            try:
                check_trusted(place, *(os.path.join(place, name) for name in os.listdir(place)))
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
                    _own_directory(root)
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
        if self._file(name) not in self.files:
            return None
        loader: Any = self
        return spec_from_loader(name, loader, is_package=name == self.package)

    def _file(self, name: str) -> str:
        return (name[len(self.package) + 1 :] or "__init__") + ".py"

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
        for where, place in places:
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
            fd = os.memfd_create("py-spy")
            view = memoryview(block)
            while view:
                view = view[os.write(fd, view) :]
            self._use("memory", "/proc/%d/fd/%d" % (os.getpid(), fd))
        except OSError as error:
            self.why = "%s; and no memory file can be had: %s" % (why, error.strerror)
        return why


def runs_programs(path: str) -> bool:
    """Whether programs on this file system may be started."""
    return not os.statvfs(path).f_flag & os.ST_NOEXEC


# The conversation


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
    base: Optional[str] = None
    why: Optional[str] = None
    try:
        base = cache_base() if wanted.get("keep", True) else None
    except Unusable as error:
        why = str(error)
    pieces: List[Tuple[str, Any]] = [("probe", Probe(wanted["probe"]))]
    if wanted.get("py-spy"):
        pieces.append(("py-spy", PySpy(wanted["py-spy"])))
    missing = [one for one in pieces if not one[1].find(base)]
    if push is None:
        say(dict(have, missing=[name for name, _ in missing]))
    elif missing and missing[-1][0] == "py-spy":
        missing.pop()[1].why = "an argument cannot carry it; one hangtop over ssh leaves it there"
    try:
        for _, piece in missing:
            why = piece.take(receive(stream), base) or why
    except (EOFError, ValueError, zlib.error) as error:
        say(dict(have, error="damaged", text=str(error)[:200]))
        return 4
    if not wanted.get("py-spy"):
        os.environ["HANGTOP_NO_PY_SPY"] = "the head has no py-spy to send"
    elif pieces[1][1].why:
        os.environ["HANGTOP_NO_PY_SPY"] = pieces[1][1].why
    done = {name: piece.where for name, piece in pieces}
    say(dict(have, done=done, why=why))
    own = [piece.hash for _, piece in pieces]
    sent = [name for name, _ in missing]
    told = {"base": base, "own": own, "sent": sent, "done": done, "why": why}
    os.environ["HANGTOP_BOOT"] = json.dumps(told)  # for the probe's cache.py
    signal.alarm(0)
    from hangtop_probe.__main__ import main as probe

    return probe(["--bundle", wanted["probe"]["hash"][:16]], push)
