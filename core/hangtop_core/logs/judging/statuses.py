"""What ended ranks that left together, by their exit statuses."""

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
"""What torchrun prints of the first rank that failed (elastic/multiprocessing/api.py)."""


def by_statuses(ranks: Iterable[Left]) -> str:
    """`ranks 0-1 were killed by SIGKILL`, or how the first left that did not end well."""
    gone = sorted(ranks, key=lambda one: one.at)
    failed = [one for one in gone if one.exit_code]
    own = [one for one in failed if one.exit_code not in TOLD_TO]
    if not own and len(failed) < len(gone):
        return ""  # a launcher ends the others, after one of which nothing is known
    failed = own or failed
    if not failed:
        return ""
    code = failed[0].exit_code or 0
    alike = [one.rank for one in failed if one.exit_code == code and one.rank is not None]
    text = how_ended(code)
    return f"{names(alike)} {text if len(alike) == 1 else of_several(text)}" if alike else ""


def with_printed(ranks: Sequence[Left], outputs: Iterable[Output]) -> list[Left]:
    """Return ranks with the statuses that their launcher has printed, where none was read."""
    if all(one.exit_code is not None for one in ranks):
        return list(ranks)
    printed = {
        (output.node, int(pid)): int(code)
        for output in outputs
        for code, pid in _FAILED.findall(output.text)
    }
    return [
        replace(one, exit_code=printed.get((one.node, one.pid))) if one.exit_code is None else one
        for one in ranks
    ]
