"""Which process is a rank: known at start from the variables of launchers; a launcher is not.

Variables that a launcher or a DataLoader worker inherits do not make it a rank: the former is
recognised by its command line, the latter by a mark that a rank leaves for its children.
"""

from __future__ import annotations

import os

try:
    import hangtop_hook.launchers as launchers  # type: ignore  # as `copy_hook` puts it
except ImportError:
    from hangtop_probe.ranks import launchers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

RANK_PID = "HANGTOP_RANK_PID"
"""Process id of the rank above, or of this rank; children inherit it."""

_NUMBERS = launchers.every("ranks")
"""Variables of tasks and PMI's are left out: one task that spawns the ranks of a node is common."""
_RENDEZVOUS = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank_at_start() -> Optional[int]:
    """Return this process's rank, where its environment names one and it is no launcher."""
    if RANK_PID in os.environ or not any(name in os.environ for name in _NUMBERS):
        return None
    return None if is_launcher(command_line()) else rank_in_environment()


def rank_in_environment() -> Optional[int]:
    """Return the rank in the variables; RANK only counts beside the rendezvous."""
    for name in _NUMBERS:
        number = count_in(name)
        if name == "RANK" and not any(variable in os.environ for variable in _RENDEZVOUS):
            continue
        if number is not None:
            return number
    return None


def count_in(name: str) -> Optional[int]:
    """Return the number in a variable; None if it is not set, or belongs to no launcher."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def claim() -> bool:
    """Mark this process as the rank of its children; False where it, or a rank above, is marked."""
    if RANK_PID in os.environ:
        return False
    os.environ[RANK_PID] = str(os.getpid())
    return True


def command_line() -> List[str]:
    """Return this process's command line; sys.argv is not complete this early."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def is_launcher(command: List[str]) -> bool:
    """Return whether a Python command line runs a launcher of ranks."""
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-"):
            return launchers.of_script(word) is not None
        letter = "" if word.startswith("--") else next((c for c in word if c in "mcWX"), "")
        # The value of the first that has one: `-m x`, `-mx`, `-um x`.
        value = word.partition(letter)[2] or next(words, "") if letter else ""
        if letter in ("m", "c"):
            return letter == "m" and launchers.owner("modules", value) is not None
    return False
