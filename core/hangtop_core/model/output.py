"""A log file of a job, as far as it was read: a noun like those of `hangtop_core.model`."""

from __future__ import annotations

from msgspec import Struct, field

from hangtop_core.model.file_log import FileLog
from hangtop_core.text.clean import Text


class Output(Struct, frozen=True):
    """One file that ranks or launchers of a node print to."""

    node: Text
    inode: Text
    """Device and inode: what tells it from other files of the node."""
    path: Text
    pids: tuple[int, ...] = ()
    """Processes that print to it, or did."""
    at: float = 0.0
    """When it was read."""
    size: int = 0
    changed: float = 0.0
    """When it was last written to."""
    start: int = 0
    """Where in the file `text` begins."""
    text: str = ""
    """Its end, as bytes that are no UTF-8 allow; untrusted."""
    log: FileLog = field(default_factory=lambda: FileLog(""))
    """What parsing the text has given."""
    why: Text | None = None
    """Why it could not be read."""
