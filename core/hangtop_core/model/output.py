"""A log file of a job, as far as it was read."""

from __future__ import annotations

from msgspec import Struct, field

from hangtop_core.model.file_log import FileLog
from hangtop_core.text.clean import Text


class Output(Struct, frozen=True):
    """One file that ranks or launchers of a node print to."""

    node: Text
    inode: Text
    """Device and inode, which identify the file on its node."""
    path: Text
    pids: tuple[int, ...] = ()
    """Processes that print to it, or did."""
    at: float = 0.0
    """When it was read."""
    size: int = 0
    changed: float = 0.0
    """When it was last written to."""
    start: int = 0
    """Offset in the file at which `text` begins."""
    text: str = ""
    """The end of the file, decoded as far as it is UTF-8; untrusted."""
    log: FileLog = field(default_factory=lambda: FileLog(""))
    """The parsed text."""
    why: Text | None = None
    """Why the file could not be read."""
