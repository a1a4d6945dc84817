"""Where a core_pattern puts cores. Pure: reads nothing.

core(5): core_pattern is a path, with `%` items, or a command that gets the core. The commands of
systemd (coredumpctl(1)) and Ubuntu (apport) keep cores in places of their own.
"""

from __future__ import annotations

import os.path
import re

from msgspec import Struct

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
    uses_pid: bool = False
    """kernel.core_uses_pid: `.PID` follows where the pattern has no %p."""

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
    where = (fixed or "/") if directory.startswith("/") else None
    return Place(pattern, directory=where, name=_names(name), uses_pid=uses_pid)


def expected(
    place: Place, *, pid: int, comm: str, cwd: str | None, node: str, signal: int | None
) -> str | None:
    """Where the core of one process should be, as a path or a pattern for a shell.

    None where a handler keeps it, or none is written.
    """
    if place.off or place.handler is not None:
        return None
    known = {"p": str(pid), "P": str(pid), "e": comm[:15], "h": node, "%": "%"}
    if signal is not None:
        known["s"] = str(signal)
    name = _ITEM.sub(lambda item: known.get(item[1], "*"), place.pattern)
    if place.uses_pid and "%p" not in place.pattern:
        name += f".{pid}"
    if name.startswith("/"):
        return name
    return f"{cwd.rstrip('/')}/{name}" if cwd else None


def _names(name: str) -> re.Pattern[str]:
    parts, at = [], 0
    for item in _ITEM.finditer(name):
        parts += [re.escape(name[at : item.start()]), _ITEMS.get(item[1], "")]
        at = item.end()
    return re.compile("".join((*parts, re.escape(name[at:]), r"(\.\d+)?")))
