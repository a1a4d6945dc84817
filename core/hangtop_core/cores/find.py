"""Where this machine puts cores, and which ones lie there.

core(5): core_pattern is a path, with `%` items, or a command that gets the core. The commands of
systemd (coredumpctl(1)) and Ubuntu (apport) keep cores in places of their own.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.cores import elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PATTERN = Path("/proc/sys/kernel/core_pattern")
MAX_NAMES = 20_000
"""Names that are looked at in one directory."""
_ITEM = re.compile(r"%(.)")
_ITEMS = {
    **dict.fromkeys("pPiIugsctd", r"\d+"),
    **dict.fromkeys("heEfF", r".*"),
    "%": "%",
}
_HANDLERS = (
    (
        "systemd-coredump",
        "/var/lib/systemd/coredump",
        "coredumpctl list; coredumpctl dump PID -o core.PID",
    ),
    ("apport", "/var/lib/apport/coredump", "ls -lt /var/lib/apport/coredump /var/crash"),
    ("abrt-hook-ccpp", "/var/spool/abrt", "abrt-cli list"),
)


class Place(Struct, frozen=True):
    """What a core_pattern means."""

    pattern: str
    handler: str | None = None
    """The command that gets cores."""
    directory: str | None = None
    """None: the working directory of the process."""
    name: re.Pattern[str] | None = None
    """Which file names are cores there."""
    command: str | None = None
    """Prints or fetches cores that the handler keeps."""
    off: bool = False

    @property
    def told(self) -> str:
        """In words, for people."""
        if self.off:
            return "nowhere: core_pattern is empty"
        if self.handler is not None:
            where = f", which keeps them in {self.directory}" if self.directory else ""
            return f"to {self.handler}{where}"
        if self.directory is None:
            return f"into the working directory of the process, as {self.pattern}"
        return f"to {self.pattern}"


def read_pattern(path: Path = PATTERN) -> str | None:
    """The core_pattern of this machine; None where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


def understand(pattern: str, uses_pid: bool = False) -> Place:
    """Say what a core_pattern means; ``uses_pid`` is kernel.core_uses_pid."""
    if pattern.startswith("|"):
        words = pattern[1:].split()
        program = os.path.basename(words[0]) if words else "a command"
        for name, directory, command in _HANDLERS:
            if name in program:
                everything = re.compile(r".*")
                return Place(pattern, program, directory, everything, command)
        return Place(pattern, program)
    if not pattern:
        return Place(pattern, off=not uses_pid)
    directory, _, name = pattern.rpartition("/")
    # An item in the directory's name may be anything: what is before it is searched.
    fixed = directory.partition("%")[0]
    if fixed != directory:
        fixed, _, _ = fixed.rpartition("/")
    return Place(pattern, directory=fixed or None if directory else None, name=_names(name))


def _names(name: str) -> re.Pattern[str]:
    parts, at = [], 0
    for item in _ITEM.finditer(name):
        parts += [re.escape(name[at : item.start()]), _ITEMS.get(item[1], "")]
        at = item.end()
    return re.compile("".join((*parts, re.escape(name[at:]), r"(\.\d+)?")))


def present(place: Place, directories: Iterable[str]) -> list[str]:
    """Cores that lie where the pattern says, the newest first.

    Args:
        place: what the pattern means.
        directories: working directories to look in where it names none.
    """
    where = [place.directory] if place.directory is not None else [*dict.fromkeys(directories)]
    found = {
        path: modified
        for directory in where
        for path, modified in _candidates(directory, place)
        if elf.is_core(path)
    }
    return sorted(found, key=lambda path: -found[path])


def in_directory(directory: str) -> list[str]:
    """All cores in one directory, by name."""
    everything = Place("", directory=directory, name=re.compile(".*"))
    return sorted(path for path, _ in _candidates(directory, everything) if elf.is_core(path))


def _candidates(directory: str, place: Place) -> Iterator[tuple[str, float]]:
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number > MAX_NAMES:
                    return
                if place.name is None or not place.name.fullmatch(entry.name):
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_size:
                    yield entry.path, status.st_mtime
    except OSError:
        return


def own_directories() -> list[str]:
    """This directory, and the working directories of this user's Python processes."""
    found = [os.getcwd()]
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            comm = Path(f"/proc/{name}/comm").read_text()
            if comm.startswith(("python", "pt_", "torchrun")):
                found.append(os.readlink(f"/proc/{name}/cwd"))
        except OSError:
            continue
    return found
