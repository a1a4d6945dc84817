"""One node: its state with reason and fix, its properties, the commands that ran on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.items import Item, numbered
from hangtop.terminal.spans import Line, labelled, line
from hangtop.views.common import clock, span
from hangtop.views.nodes.nodes import NodeRow, node_role, seen_ago
from hangtop_core.analysis import cgroups
from hangtop_core.model.node import disk_space
from hangtop_core.model.node.core_pattern import understand
from hangtop_core.text import node_sets
from hangtop_core.text.clean import clean, plural, size
from hangtop_core.text.commands import spelt_or_why
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.model.snapshot import Fact, Node

LABEL = 9
COMMANDS_SHOWN = 60
GROUPS_SHOWN = 8
MOUNTS_SHOWN = 4
LINES_SHOWN = 6
"""Number of kernel log lines to show, the newest ones."""
FIX = "fix:0"
"""Key of the entry with the fix."""


def node_items(row: NodeRow, shell: Sequence[str] | None) -> list[Item]:
    """Return all facts about a node, one entry for each that is worth copying."""
    node = row.node
    state = line((row.state, node_role(row.state)), f" for {span(row.lasting)}")
    heard = seen_ago(row)
    state = line(state, ("  last heard ", "label"), (heard, "" if heard == "now" else "warn"))
    items = [_item("state", state)]
    if row.reason:
        items.append(_item("reason", line((row.reason, row.reason_role))))
    if node.fix:
        items.append(_item("fix", line((node.fix, "code")), copy=node.fix))
    if len(row.nodes) > 1:
        names = node_sets.fold(node.name for node in row.nodes)
        items.append(_item("equal", f"{len(row.nodes)} nodes: {names}", copy=names))
        items.append(_item("", line(("below: the first of them, ", "dim"), node.name)))
    if row.ranks:
        described = line(fold(row.ranks), ("  " + row.trouble, row.trouble_role))
        items.append(_item("ranks", described))
    if node.via:
        items.append(_item("via", node.via))
    if shell is not None:
        command = spelt_or_why(shell)
        items.append(_item("shell", line((command, "code"), ("  !", "key")), copy=command))
    items += [*_hello(node), *_resources(node), *_capabilities(node), *_processes(node)]
    return numbered(items)


def _item(label: str, value: Line | str, copy: str | None = None) -> Item:
    return Item(label, (labelled(label, value, LABEL),), LABEL + 1, line(copy) if copy else None)


def _hello(node: Node) -> list[Item]:
    """Return what the probe reported about itself and the machine when it started."""
    if node.python is None:
        return [_item("probe", line(("has not said hello yet", "dim")))]
    items = []
    system = "  ".join(part for part in (node.system, node.arch) if part)
    name = node.hostname if node.hostname not in (None, node.name) else ""
    items.append(_item("system", line(system, ("  host name ", "label"), name) if name else system))
    uid = "" if node.uid is None else f" (uid {node.uid})"
    items.append(
        _item("probe", line(f"Python {node.python}", ("  user ", "label"), f"{node.user}{uid}"))
    )
    latency = "-" if node.latency_s is None else f"{node.latency_s * 1000:.1f} ms"
    again = f"  started again {plural(node.generation, 'time')}" if node.generation else ""
    cost = "" if node.probe_cpu is None else f"{node.probe_cpu:.1%} cpu"
    items.append(
        _item("link", line(("latency ", "label"), latency, ("  probe ", "label"), cost, again))
    )
    if node.boot_id:
        items.append(_item("boot id", node.boot_id, copy=node.boot_id))
    if node.clock_skew_s:
        items.append(_item("clock", line((f"{node.clock_skew_s:+.1f} s against here", "warn"))))
    return items


def _resources(node: Node) -> list[Item]:
    items = []
    if node.cpus is not None:
        load = "?" if node.load1 is None else f"{node.load1:.1f}"
        items.append(_item("load", f"{load} on {plural(node.cpus, 'cpu')}"))
    if node.memory_total:
        text = f"{size(node.memory_available)} free of {size(node.memory_total)}"
        shm = f"{size(node.shm_free)} of {size(node.shm_total)}" if node.shm_total else "?"
        items.append(_item("memory", line(text, ("  /dev/shm ", "label"), shm)))
    short = [("memory", node.memory_full), ("a disk", node.io_full)]
    shortages = [f"in {share:.0f}% for want of {what}" for what, share in short if share]
    if shortages:
        items.append(_item("pressure", f"nothing ran {', '.join(shortages)}, of the last 10 s"))
    for mount in node.full_mounts[:MOUNTS_SHOWN]:
        full = line((f"no space or inodes are left on {mount}", "warn"))
        items.append(_item("full", full, copy=mount))
    for quota in node.full_quotas[:MOUNTS_SHOWN]:
        used_up = disk_space.describe(quota, f"{quota.uid}")
        items.append(_item("full", line((used_up, "warn")), copy=quota.mount))
    items += _groups(node)
    items += [
        _item("kernel", line((clock(entry.at), "info"), f"  {entry.text}"), copy=entry.text)
        for entry in node.kernel_lines[-LINES_SHOWN:]
    ]
    return items


def _groups(node: Node) -> list[Item]:
    """Return the cgroups of its ranks that limit memory or run short of it, the latter first."""
    bad = list(cgroups.telling(node.cgroups))
    limits = [group for group in node.cgroups if group.limit is not None and group not in bad]
    items = []
    for group in (*bad, *limits)[:GROUPS_SHOWN]:
        text = cgroups.describe(group).removeprefix("cgroup ")
        items.append(
            _item("cgroup", line((text, "warn" if group in bad else "")), copy=group.folder)
        )
    return items


def _capabilities(node: Node) -> list[Item]:
    """Return the working capabilities in one line, then each missing one with reason and fix."""
    good = [f"{name} {fact.version or ''}".strip() for name, fact in _facts(node) if fact.ok]
    items = [_item("can use", ", ".join(good))] if good else []
    for name, fact in _facts(node):
        if not fact.ok:
            fix = line("  ", (fact.fix, "code")) if fact.fix else ""
            described = line((fact.why or "not usable", "warn"), fix)
            items.append(_item(name, described, copy=fact.fix))
    core = node.capabilities.get("core")
    if core is not None and core.ok:
        place = understand(core.path or "", uses_pid=core.version == "pid")
        items.append(_item("cores", f"go {clean(place.text, 300)}"))
    return items


def _facts(node: Node) -> list[tuple[str, Fact]]:
    return sorted((name, fact) for name, fact in node.capabilities.items() if name != "core")


def _processes(node: Node) -> list[Item]:
    items = []
    if node.processes is not None:
        items.append(_item("seen", plural(node.processes, "process", "processes")))
    for user, ranks in sorted(node.other_users.items()):
        text = f"{plural(ranks, 'rank')} of {user}: --all-users shows them"
        items.append(_item("left out", line((text, "warn"))))
    items += [_item("python", line((cmd, "dim"))) for cmd in node.python_processes]
    if node.noise_lines:
        count = plural(node.noise_lines, "line")
        summary = f"{count} that are not hangtop's, skipped; the last of them:"
        items.append(_item("noise", summary))
        items += [_item("", line((text, "dim")), copy=text) for text in node.noise]
    return items


def commands_of(records: Iterable[CommandRecord], row: NodeRow) -> list[CommandRecord]:
    """Return the newest command records about a node, or several nodes, oldest first."""
    names = {node.name for node in row.nodes}
    return [record for record in records if record.node in names][-COMMANDS_SHOWN:]
