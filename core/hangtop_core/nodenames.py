"""Many node names as one short text: ``gpu[01-16],login1``, as ClusterShell and Slurm write them.

Reading such a text is `hangtop_core.attach.targets`' part, which has ClusterShell do it; analysis
and reports only write, and import nothing for that.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.rankset import fold
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)")


def fold_names(names: Iterable[str]) -> str:
    """Return the folded text of a set of names, cleaned; ``""`` when there are none."""
    plain: list[str] = []
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in sorted({clean(name) for name in names}):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            groups[match[1], match[3]].add(match[2])
    parts = [part for ends, numbers in groups.items() for part in _parts(*ends, numbers)]
    return ",".join([*parts, *plain])


def _parts(before: str, after: str, numbers: set[str]) -> list[str]:
    """One text per width where numbers are padded with zeros: 01 and 1 are two names."""
    padded = any(number.startswith("0") and number != "0" for number in numbers)
    widths = {len(number) for number in numbers} if padded else {0}
    parts = []
    for width in sorted(widths):
        some = sorted(number for number in numbers if width in (0, len(number)))
        text = _padded(fold(int(number) for number in some), width)
        parts.append(f"{before}{some[0] if len(some) == 1 else f'[{text}]'}{after}")
    return parts


def _padded(text: str, width: int) -> str:
    return re.sub(r"\d+", lambda match: match[0].zfill(width), text)
