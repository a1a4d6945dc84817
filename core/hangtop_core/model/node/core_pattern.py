"""Where a core_pattern puts core files. Pure: reads nothing.

core(5): core_pattern is a path, with `%` items, or a command that gets the core. The commands of
systemd (coredumpctl(1)) and Ubuntu (apport) keep core files in places of their own.
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
        "core.PID",
    ),
    (
        "apport",
        "/var/lib/apport/coredump",
        "ls -lt /var/lib/apport/coredump /var/crash",
        "/var/lib/apport/coredump/core.*.PID.*",
    ),
    (
        "abrt-hook-ccpp",
        "/var/spool/abrt",
        "abrt-cli list",
        "/var/spool/abrt/ccpp-*-PID/coredump",
    ),
)
"""Name, directory of its core files, the command that lists them, and the file to open
afterwards."""
_ABRT_BELOW = (re.compile(r"ccpp-.*"),)
_EVERYTHING = re.compile(r".*")
PATTERN_FIX = "sudo sysctl -w kernel.core_pattern=/var/crash/core.%e.%p"


class Place(Struct, frozen=True):
    """The meaning of a core_pattern."""

    pattern: str
    handler: str | None = None
    """The command that gets core files."""
    directory: str | None = None
    """Directory of the core files; None is the working directory of the process."""
    below: tuple[re.Pattern[str], ...] = ()
    """Directories below it, nested, that hold the core files: `/cores/%h/core.%p`."""
    name: re.Pattern[str] | None = None
    """Names of files there that are core files."""
    command: str | None = None
    """Command that prints or fetches core files that the handler keeps."""
    opens: str | None = None
    """The file to open then, with `PID`, and `*` for a shell."""
    off: bool = False
    uses_pid: bool = False
    """kernel.core_uses_pid: `.PID` is appended where the pattern has no %p."""

    @property
    def limited(self) -> bool:
        """Return whether a process whose `ulimit -c` is 0 leaves no core file.

        The kernel gives a command every core, but systemd-coredump keeps none above the limit that
        its `%c` argument gives it (systemd, src/coredump, save_external_coredump).
        """
        if self.handler is None:
            return True
        return "systemd-coredump" in self.handler and "%c" in self.pattern

    @property
    def text(self) -> str:
        """Return the meaning in words, for people."""
        if self.off:
            return "nowhere: core_pattern is empty"
        if self.handler is not None:
            where = f", which keeps them in {self.directory}" if self.directory else ""
            return f"to {self.handler}{where}"
        if self.directory is None:
            return f"into the working directory of the process, as {self.pattern}"
        return f"to {self.pattern}"


def understand(pattern: str, uses_pid: bool = False) -> Place:
    """Return the meaning of a core_pattern; ``uses_pid`` is kernel.core_uses_pid."""
    if pattern.startswith("|"):
        words = pattern[1:].split()
        program = os.path.basename(words[0]) if words else "a command"
        for name, kept, command, opens in _HANDLERS:
            if name in program:
                below = _ABRT_BELOW if name.startswith("abrt") else ()
                return Place(pattern, program, kept, below, _EVERYTHING, command, opens)
        return Place(pattern, program)
    if not pattern:
        return Place(pattern, off=not uses_pid, name=_names("", r"\.\d+"), uses_pid=uses_pid)
    *directories, name = pattern.split("/")
    fixed = 0
    if pattern.startswith("/"):
        # A directory with an item in its name may be any of that form.
        fixed = next(
            (at for at, directory in enumerate(directories) if "%" in directory), len(directories)
        )
    return Place(
        pattern,
        directory=("/".join(directories[:fixed]) or "/") if fixed else None,
        below=tuple(map(_names, directories[fixed:])),
        name=_names(name, r"(\.\d+)?"),
        uses_pid=uses_pid,
    )


def expected(
    place: Place, *, pid: int | None, comm: str, cwd: str | None, node: str, signal: int | None
) -> str | None:
    """Return where the core file of a process should be, as a path or a pattern for a shell.

    Return None where a handler keeps it, or none is written, or where a name in it has a `*`, which
    stands for unknown parts.
    """
    has_star = any("*" in text for text in (comm, cwd or "", node, place.pattern))
    if place.off or place.handler is not None or has_star:
        return None
    values = {"e": comm[:15], "h": node, "%": "%"}
    if pid is not None:
        values |= {"p": str(pid), "P": str(pid)}
    if signal is not None:
        values["s"] = str(signal)
    name = _ITEM.sub(lambda item: values.get(item[1], "*"), place.pattern)
    if place.uses_pid and "%p" not in place.pattern:
        name += f".{'*' if pid is None else pid}"
    if name.startswith("/"):
        return name
    return f"{cwd.rstrip('/')}/{name}" if cwd else None


def _names(name: str, end: str = "") -> re.Pattern[str]:
    """Return a pattern for a name with items, and with an optional ending after it."""
    parts, at = [], 0
    for item in _ITEM.finditer(name):
        parts += [re.escape(name[at : item.start()]), _ITEMS.get(item[1], "")]
        at = item.end()
    return re.compile("".join((*parts, re.escape(name[at:]), end)))
