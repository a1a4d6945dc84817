"""Limits of a login (ulimit) that are too small for a probe: their messages, and the fix.

The messages are those of Python, its loader (ld.so) and shells when memory, open files or processes
run out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.text.commands import Command, shown

if TYPE_CHECKING:
    from hangtop_core.attach.connect.launcher import ByHand
    from hangtop_core.text.commands import Step

_SAY_SO = re.compile(
    r"MemoryError|Cannot allocate memory|can't start new thread|failed to map segment"
    r"|Too many open files|\bErr(?:no|or):? (?:11|12|23|24)\b|Resource temporarily unavailable"
)
_WHY = (
    "limits there are too small, of memory (ulimit -v), open files (-n) or processes (-u): "
    "--init 'ulimit -n 1024' raises one as far as it may be; see them by"
)


def fix_text(reason: str, fix: Step | None, by_hand: ByHand) -> str | None:
    """Return how to mend the end of a connection to a node, for people.

    Args:
        reason: why it ended.
        fix: the fix for how it ended, where no limit is the reason.
        by_hand: how a person reaches the node.
    """
    if by_hand.shell is not None and _SAY_SO.search(reason):
        fix = Command("", (*by_hand.shell, "ulimit -a"), _WHY)
    return None if fix is None else shown(fix).text
