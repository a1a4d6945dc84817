"""Whether the flight recorders of the ranks on a node can be read while they hang.

Names of settings as in torch 2.4 to 2.15. A pipe is only made with TORCH_NCCL_TRACE_BUFFER_SIZE
above 0, whatever TORCH_FR_BUFFER_SIZE says (torch 2.8 to 2.10).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.analysis.ladder.rung import Rung, missing, ok, skipped, unreached, warning
from hangtop_core.text import plural

if TYPE_CHECKING:
    from hangtop_core.check import Check, RecorderWays

NAME = "flight recorder"
_FIX = (
    "start the job with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_FR_BUFFER_SIZE=2000 and, for NCCL, "
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_; or with a worker server, which gloo has, too"
)
_BY = {"server": "a worker server", "pipe": "a pipe", "dump": "a dump that was written"}


def rung(check: Check) -> Rung:
    """Return the rung of a node."""
    if not check.ranks:
        return skipped(NAME, "no rank runs there")
    ways = [rank.recorder for rank in check.ranks if rank.recorder is not None]
    if not ways:
        return unreached(NAME, "the ranks cannot be looked into")
    found = Counter(_way(one) for one in ways)
    count = plural(len(ways), "rank")
    if found["off"]:
        text = f"switched off in {found['off']} of {count}: its size is set to 0"
        return missing(NAME, text, _FIX)
    if found["none"]:
        text = (
            f"{found['none']} of {count} cannot be asked while hanging: no worker server, no pipe"
        )
        return warning(NAME, text, _FIX)
    by = ", ".join(words for way, words in _BY.items() if found[way])
    return ok(NAME, f"readable by {by}", count)


def _way(ways: RecorderWays) -> str:
    """The best way to a recorder: one that answers now, before one that was written once."""
    if ways.server is not None:
        return "server"
    if ways.size == 0:
        return "off"
    if ways.pipe_there:
        return "pipe"
    return "dump" if ways.dump_there else "none"
