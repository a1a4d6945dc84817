"""The cause of the end of ranks that exited together, by their exit statuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.logs.judging.ended import TOLD_TO
from hangtop_core.text.clean import how_ended, of_several
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model.output import Output
    from hangtop_core.model.snapshot import Left

_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: \d+ \(pid: (\d{1,10})\)")
"""torchrun's line on the first rank that failed (elastic/multiprocessing/api.py)."""


def by_statuses(ranks: Iterable[Left]) -> str:
    """Return `ranks 0-1 were killed by SIGKILL`, or how the first failed rank exited."""
    gone = sorted(ranks, key=lambda left: left.at)
    failed = [left for left in gone if left.exit_code]
    own = [left for left in failed if left.exit_code not in TOLD_TO]
    if not own and len(failed) < len(gone):
        return ""  # a launcher ended these after another rank, whose status is unknown
    failed = own or failed
    if not failed:
        return ""
    code = failed[0].exit_code or 0
    alike = [left.rank for left in failed if left.exit_code == code and left.rank is not None]
    text = how_ended(code)
    return f"{names(alike)} {text if len(alike) == 1 else of_several(text)}" if alike else ""


def with_printed(ranks: Sequence[Left], outputs: Iterable[Output]) -> list[Left]:
    """Return ranks with the statuses that their launcher printed, where none was read."""
    if all(left.exit_code is not None for left in ranks):
        return list(ranks)
    printed = {
        (output.node, int(pid)): int(code)
        for output in outputs
        for code, pid in _FAILED.findall(output.text)
    }
    return [
        replace(left, exit_code=printed.get((left.node, left.pid)))
        if left.exit_code is None
        else left
        for left in ranks
    ]
