"""Where hangtop keeps things on a node, and how files get there whole and checked.

The cache of a user is one directory, 0700 and theirs. This file is sent as a part of the boot, see
`boot.PARTS`: until that is done, nothing else of the probe is here.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from typing import Dict, Iterator, Optional, Sequence

Files = Dict[str, bytes]


class Unusable(Exception):
    """A place cannot be used, and why."""


def tree_hash(package: str) -> str:
    """Return the SHA-256, in hex, over names and contents of the modules of a package."""
    return packed_hash(read_tree(package))


def read_tree(package: str) -> Files:
    """Return the modules of a package directory by their path in it, as bytes."""
    files: Files = {}
    for path in entries(package):
        if path.endswith(".py"):
            with open(path, "rb") as file:
                files[os.path.relpath(path, package)] = file.read()
    return files


def entries(package: str) -> Iterator[str]:
    """Yield the paths of what a package and its sub-packages hold, but for compiled modules."""
    for folder, folders, names in os.walk(package):
        if os.path.basename(folder) != "__pycache__":
            yield from (os.path.join(folder, name) for name in folders + names)


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
    """Undo `pack`; names that lead out of the package are refused."""
    head, _, rest = block.partition(b"\n")
    files: Files = {}
    for name, length in json.loads(head.decode("utf-8")):
        if {"", ".", ".."}.intersection(name.split("/")):
            raise ValueError("bad file name")
        files[name], rest = rest[:length], rest[length:]
    return files


def cache_path() -> str:
    """Return where the cache of this user is; raise `Unusable` where that is nowhere.

    The home is the one of the user we are, which under sudo is another than $HOME may say.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        home = _home()
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
        # As it really is from here on: a link on the way may lead elsewhere the next moment.
        base = os.path.realpath(base)
        check_way(base)
        return own_directory(os.path.join(base, os.path.basename(own)))
    except OSError as error:
        raise Unusable("%s: %s" % (base, error.strerror)) from error


def _home() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return os.environ.get("HOME") or ""


def own_directory(path: str) -> str:
    """Make a directory or take one that is ours, closed to others; raise `Unusable` or OSError."""
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
    """Raise `Unusable` where a user other than us or root could change or replace the files.

    The paths must be real ones, without links.
    """
    ways = set()
    for path in paths:
        found = os.stat(path)
        _check_owner(found, path, (os.geteuid(), 0))
        if found.st_mode & 0o022:
            raise Unusable("%s can be written by others" % path)
        ways.add(os.path.dirname(path))
    for way in ways:
        check_way(way)


def check_way(path: str) -> None:
    """Raise `Unusable` or OSError where others could rename something on the way to ``path``.

    Up to the home of this user: who could put another home there needs nothing of ours. Whoever
    has the root directory counts as root, who has another number in containers.
    """
    stop: Optional[str] = os.path.realpath(_home()) if os.path.isabs(_home()) else None
    owners = (os.geteuid(), 0, os.stat("/").st_uid)
    while True:
        _check_owner(os.lstat(path), path, owners)
        above = os.path.dirname(path)
        if above == path or path == stop:
            return
        path = above


def keep(base: str, key: str, files: Files, mode: int) -> str:
    """Put files into ``base/key`` at once: a directory beside it that is then renamed."""
    target = os.path.join(base, key)
    work = tempfile.mkdtemp(prefix=".new-", dir=base)
    try:
        for name, content in files.items():
            path = os.path.join(work, name)
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
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


def runs_programs(path: str) -> bool:
    """Whether programs on this file system may be started."""
    return not os.statvfs(path).f_flag & os.ST_NOEXEC
