"""Programs that hand their own RANK down to ranks: it counts nodes (torch's ImageNet example)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Mapping, Optional, Sequence, Set, Tuple

from .rankvariables import rank_number

if TYPE_CHECKING:
    from .candidates import Table

    Told = Tuple[int, str]


def apart(
    numbers: Mapping[int, Told], below: Mapping[int, Sequence[int]], joined: Set[int]
) -> Tuple[Dict[int, Told], Set[int]]:
    """Return the numbers that are ranks' own, and the programs that only started ranks.

    Those ``below`` each of them are in a group, as all that have ``joined``.
    """
    own, starters = dict(numbers), set()
    for pid, number in numbers.items():
        ranks = below.get(pid, ())
        if pid in joined or len(ranks) < 2:
            continue
        starters.add(pid)
        del own[pid]
        if {numbers.get(rank) for rank in ranks} == {number}:
            for rank in ranks:
                del own[rank]
    return own, starters


def is_only_node(environ: Mapping[str, str]) -> bool:
    """Whether nothing says that there are ranks elsewhere, so that an index counts them all."""
    return rank_number(environ) is None or environ.get("WORLD_SIZE") == "1"


def own_at_start(table: Table, pid: int) -> Optional[int]:
    """Return the number that a rank was started with and has changed, if it was its own."""
    told, parent = table[pid].rank_at_start, table.get(table[pid].ppid)
    handed = rank_number((parent and parent.environ) or {})
    return told[0] if told and told != handed else None
