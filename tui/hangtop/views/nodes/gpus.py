"""The table of GPUs: activity by utilisation and power, owner, and problems."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import Line, counted, line
from hangtop.views.common import last_seen_text, rank_key, silence
from hangtop_core.analysis.gpus import Doing, doing, owners, reasons, troubles
from hangtop_core.analysis.xids import events
from hangtop_core.text import node_sets
from hangtop_core.text.clean import plural, size
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from hangtop_core.model.node.hardware import Gpu
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot

DOES_ROLES: dict[Doing, str] = {
    "computes": "good",
    "spins": "warn",
    "busy": "",
    "idle": "info",
    "broken": "bad",
    "MIG": "",
    "unknown": "dim",
}
FOLD_FROM = 64
"""Number of GPUs from which each node has one row, until it is unfolded."""
BAR = 5
"""Width of a bar in cells."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU, all GPUs of one node, or a node whose GPUs cannot be read."""

    key: str
    node: Node
    gpus: tuple[Gpu, ...]
    ranks: tuple[int, ...]
    rank_key: str | None
    """Key of the rank that the GPU belongs to, if it belongs to one rank."""
    does: Counter[Doing]
    trouble: str
    xids: tuple[int, ...]
    level: int
    """Severity: 0 has a problem, 1 differs from most GPUs of the job, 2 is normal."""

    @property
    def folded(self) -> bool:
        """Whether the row stands for all GPUs of a node."""
        return len(self.gpus) != 1

    def values(self, name: str) -> list[int]:
        """Return the known values of a field of its GPUs, among those that can be read."""
        fields = (getattr(gpu, name) for gpu in self.gpus if gpu.state == "ok")
        return [value for value in fields if value is not None]

    def most(self, name: str) -> int:
        """Return the largest value of a field, for sorting."""
        return max(self.values(name), default=-1)


def gpu_rows(snapshot: Snapshot, job: Job | None, *, folded: bool) -> list[GpuRow]:
    """Return rows of all GPUs, problems first; with `folded` one row for each node."""
    rows: list[GpuRow] = []
    owned = owners(job, snapshot.nodes)
    usual = _usual(snapshot, owned)
    for node in snapshot.nodes:
        failure = node.nvml.error or node.nvml.missing if node.nvml is not None else None
        if failure and not node.gpus:
            rows.append(GpuRow(node.name, node, (), (), None, Counter(), failure, (), 0))
        own = _node_rows(node, owned, usual, snapshot.at)
        rows += [_joined(node, own)] if folded and len(own) > 1 else own
    rows.sort(key=lambda row: (row.level, 0 if row.level else _gravity(row)))
    return rows


def _node_rows(
    node: Node,
    owned: Mapping[tuple[str, int], Sequence[Rank]],
    usual: Doing | None,
    now: float,
) -> list[GpuRow]:
    """Return a row for each GPU of a node."""
    xids = events(node) if node.gpus else {}
    quiet = silence(node, now)
    old = (last_seen_text(node.state, quiet),) if quiet is not None else ()
    rows = []
    for gpu in node.gpus:
        ranks = owned.get((node.name, gpu.index), ())
        does, wrong = doing(gpu), (*troubles(gpu), *old)
        unusual = bool(ranks) and usual is not None and does != usual
        numbers = tuple(dict.fromkeys(event.number for event in xids.get(gpu.index, ())))
        rows.append(
            GpuRow(
                key=f"{node.name}:{gpu.index}",
                node=node,
                gpus=(gpu,),
                ranks=tuple(sorted(rank.rank for rank in ranks)),
                rank_key=rank_key(ranks[0]) if len(ranks) == 1 else None,
                does=Counter([does]),
                trouble="; ".join(wrong),
                xids=numbers,
                level=0 if wrong else 1 if unusual or numbers else 2,
            )
        )
    return rows


def _gravity(row: GpuRow) -> int:
    """Return the severity for sorting: unreadable, then with errors, then slowed down, the rest."""
    severities = (
        0 if gpu.state != "ok" else 2 if set(troubles(gpu)) <= set(reasons(gpu)) else 1
        for gpu in row.gpus
    )
    return min(severities, default=0)


def _usual(snapshot: Snapshot, owned: Container[tuple[str, int]]) -> Doing | None:
    """Return what most GPUs of the job do; None where there is no majority."""
    activities = Counter(
        doing(gpu)
        for node in snapshot.nodes
        for gpu in node.gpus
        if (node.name, gpu.index) in owned
    )
    activities.pop("broken", None)
    does, count = next(iter(activities.most_common(1)), (None, 0))
    return does if count * 2 > sum(activities.values()) else None


def _joined(node: Node, rows: Sequence[GpuRow]) -> GpuRow:
    same = {row.trouble for row in rows}
    wrong = [f"GPU {row.gpus[0].index}: {row.trouble}" for row in rows if row.trouble]
    if len(same) == 1:
        wrong = list(same)
    return GpuRow(
        key=f"{node.name}+",
        node=node,
        gpus=tuple(row.gpus[0] for row in rows),
        ranks=tuple(sorted(rank for row in rows for rank in row.ranks)),
        rank_key=None,
        does=sum((row.does for row in rows), Counter()),
        trouble="; ".join(wrong),
        xids=tuple(dict.fromkeys(number for row in rows for number in row.xids)),
        level=min(row.level for row in rows),
    )


def counts(rows: Iterable[GpuRow]) -> Line:
    """Return the number of GPUs per activity."""
    return doing_counts(does for row in rows for does in row.does.elements())


def doing_counts(activities: Iterable[Doing]) -> Line:
    """Return `6 spins 1 idle 1 broken`."""
    return counted(activities, DOES_ROLES.__getitem__)


def none_found(snapshot: Snapshot) -> list[Line]:
    """Return why there are no GPUs to show, by reason."""
    why: dict[str, list[str]] = {}
    for node in snapshot.nodes:
        fact = node.capabilities.get("nvml")
        reason = "nothing was heard of it yet" if fact is None else fact.why
        if node.nvml is not None:
            reason = node.nvml.missing or node.nvml.error or "NVIDIA's driver shows none"
        why.setdefault(reason or "the driver has not answered yet", []).append(node.name)
    lines = [line(("No GPU to show.", "bold"))]
    for reason, names in why.items():
        lines.append(line(("  ", ""), node_sets.fold(names), (f"  {reason}", "dim")))
    return lines


def bar(share: float, role: str) -> Line:
    """Return a bar of five cells, filled in proportion to the share."""
    full = min(max(round(share * BAR), 0), BAR)
    if share > 0.02:
        full = max(full, 1)
    return line(("■" * full, role), ("□" * (BAR - full), "dim"))


def _between(values: Sequence[int], unit: str) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{high}{unit}" if low == high else f"{low}-{high}{unit}"


def _role(row: GpuRow) -> str:
    (does, _), *more = row.does.most_common() or [("unknown", 0)]
    return "" if more else DOES_ROLES[does]


def _util(row: GpuRow) -> Line:
    values = row.values("util")
    if not values:
        return line(("-", "dim"))
    mean = sum(values) / len(values) / 100
    return line(bar(mean, _role(row)), " ", _between(values, "%"))


def _power(row: GpuRow) -> Line:
    values = row.values("power_w")
    if not values:
        return line(("-", "dim"))
    limits = row.values("power_limit_w")
    share = sum(values) / sum(limits) if limits and sum(limits) else 0.0
    shown = bar(share, _role(row)) if limits else line(" " * BAR)
    return line(shown, " ", _between(values, " W"))


def _does(row: GpuRow) -> Line:
    if len(row.does) == 1 and not row.folded:
        (does,) = row.does
        word = row.gpus[0].state if does == "broken" else does
        return line((word, DOES_ROLES[does]))
    parts: list[tuple[str, str]] = []
    for does, count in row.does.most_common():
        parts += [(f"{count} {does}", DOES_ROLES[does]), (" ", "")]
    return line(*parts[:-1]) if parts else line(("unreadable", "bad"))


def _memory(row: GpuRow) -> Line:
    used, total = row.values("memory_used"), row.values("memory_total")
    if not used:
        return line(("-", "dim"))
    full = total and max(used) > 0.97 * max(total)
    return line((size(max(used)), "warn" if full else ""))


def _links(row: GpuRow) -> Line:
    links = [link for gpu in row.gpus if gpu.state == "ok" for link in gpu.links]
    if not links:
        return line(("-", "dim"))
    up = sum(link.up is True for link in links)
    return line((f"{up}/{len(links)}", "" if up == len(links) else "bad"))


def _count(values: Sequence[int]) -> Line:
    total = sum(values)
    return line((str(total), "bad" if total else "dim")) if values else line(("-", "dim"))


def _plain(name: str, unit: str = "") -> Callable[[GpuRow], Line]:
    def cell(row: GpuRow) -> Line:
        values = row.values(name)
        return line((_between(values, unit), "" if values else "dim"))

    return cell


def _name(row: GpuRow) -> str:
    if not row.gpus:
        return "-"
    return str(row.gpus[0].index) if not row.folded else plural(len(row.gpus), "GPU")


GPU_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column(
        "node",
        "NODE",
        lambda row: line((row.node.name, "bold")),
        lambda row: row.node.name,
        minimum=4,
        maximum=20,
    ),
    Column("gpu", "GPU", lambda row: line(_name(row)), align="right", minimum=3, maximum=8),
    Column(
        "ranks",
        "RANK",
        lambda row: line((fold(row.ranks) or "-", "" if row.ranks else "dim")),
        lambda row: row.ranks or (1 << 30,),
        minimum=4,
        maximum=12,
    ),
    Column("does", "DOES", _does, lambda row: sorted(row.does), minimum=8, maximum=26),
    Column("util", "UTIL", _util, lambda row: row.most("util"), minimum=10, maximum=14),
    Column("power", "POWER", _power, lambda row: row.most("power_w"), minimum=11, maximum=18),
    Column(
        "memory", "MEMORY", _memory, lambda row: row.most("memory_used"),
        align="right", maximum=10, drop=4,
    ),
    Column(
        "clock", "MHZ", _plain("sm_mhz"), lambda row: row.most("sm_mhz"),
        align="right", maximum=9, drop=6,
    ),
    Column(
        "temperature", "TEMP", _plain("temperature", " C"), lambda row: row.most("temperature"),
        align="right", maximum=8, drop=7,
    ),
    Column("links", "NVLINK", _links, align="right", maximum=9, drop=5),
    Column(
        "ecc", "ECC", lambda row: _count(row.values("ecc_now")), lambda row: row.most("ecc_now"),
        align="right", maximum=5, drop=3,
    ),
    Column(
        "xid",
        "XID",
        lambda row: line((",".join(map(str, row.xids)), "bad")),
        lambda row: row.xids,
        maximum=10,
        optional=True,
        drop=2,
    ),
    Column(
        "trouble",
        "WHAT IS WRONG",
        lambda row: line((row.trouble, "bad")),
        lambda row: row.trouble,
        minimum=20,
        maximum=60,
        flex=True,
        optional=True,
        drop=1,
    ),
)  # fmt: skip
