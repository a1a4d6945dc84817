"""The `:` line: suggestions for the typed text, and the command of an entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hangtop.keys.actions import Action, keys_of
from hangtop.keys.items import Item
from hangtop.terminal.spans import line
from hangtop_core.text.rank_sets import rank_label

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from hangtop.source.situation import Situation
    from hangtop_core.model.snapshot import Job, Snapshot

HIDDEN = frozenset({"up", "down", "line_up", "line_down", "palette"})
RANKS_SHOWN = 8
NODES_SHOWN = 20


@dataclass(frozen=True)
class Command:
    """The command of an entry of the palette."""

    kind: Literal["rank", "node", "interval", "action", "unknown"]
    value: str


def suggest(
    text: str,
    job: Job | None,
    snapshot: Snapshot | None,
    now: Situation,
    actions: Iterable[Action],
) -> list[Item]:
    """Return the matching entries: ranks and nodes first, then screens and actions."""
    text = text.strip().casefold()
    digits = text.removeprefix("rank").strip()
    items: list[Item] = []
    if job is not None and text and text[-1].isdigit():
        items += _ranks(digits.removeprefix("pid"), job)
    if snapshot is not None and text:
        page = " ".join(filter(None, (now.keys.get("nodes"), "Nodes")))
        items += _nodes(text, frozenset(job.nodes) if job else (), snapshot, page)
    if digits.isdecimal():
        return items
    entries = [_action(action, now) for action in _actions(text, now, actions)]
    if not (now.live and "interval".startswith(text.split(" ")[0] if text else "")):
        return items + entries
    value = text.partition(" ")[2] or "5"
    interval = _item(f"interval {value}", "seconds between two pictures; 1 is usual")
    # Enter on an empty line goes to a screen, and changes nothing.
    return [*items, interval, *entries] if text else [*items, *entries, interval]


def _ranks(typed: str, job: Job) -> Iterator[Item]:
    """Yield the first ranks whose number, or pid, begins with the typed text."""
    ranks = [r for r in job.ranks if rank_label(r.rank).removeprefix("pid").startswith(typed)]
    for rank in ranks[:RANKS_SHOWN]:
        about = f"{rank.about} " if rank.about else ""
        where = f"{about}on {rank.node}, {rank.state}"
        yield _item(f"rank {rank_label(rank.rank)}", where)


def _nodes(typed: str, ranked: Container[str], snapshot: Snapshot, page: str) -> Iterator[Item]:
    """Yield the first nodes whose name contains the typed text.

    Args:
        typed: the text, in lower case.
        ranked: names of nodes with ranks of the job.
        snapshot: the snapshot with all nodes.
        page: the page for nodes without ranks, with its key.
    """
    nodes = [node for node in snapshot.nodes if typed in node.name.casefold()]
    for node in nodes[:NODES_SHOWN]:
        text = "only its ranks" if node.name in ranked else f"{node.state}, {page}"
        yield _item(f"node {node.name}", text)


def _actions(text: str, now: Situation, actions: Iterable[Action]) -> list[Action]:
    matching = []
    for action in actions:
        is_available = action.offered(now) and (not action.screens or now.screen in action.screens)
        if (
            is_available
            and action.id not in HIDDEN
            and text in f"{action.id} {action.help}".casefold()
        ):
            matching.append(action)
    matching.sort(key=lambda action: not action.id.startswith(text))
    return matching


def _item(key: str, text: str) -> Item:
    return Item(key, (line((f"{key:<20} ", "bold"), text),), 21)


def _action(action: Action, now: Situation) -> Item:
    reason = action.possible(now)
    name = action.id.replace("_", " ")
    note = action.help if reason is None else f"not now: {reason}"
    keys = f"{keys_of(action).split(' ')[0]:<7}"
    text = line(
        (f"{name:<20} ", "bold" if reason is None else "off"),
        (keys, "key"),
        (note, "" if reason is None else "off"),
    )
    return Item(name, (text,), 28)


def parse(text: str, names: Container[str]) -> Command:
    """Return the command of a chosen or typed text."""
    text = text.strip()
    word, _, argument = text.partition(" ")
    number = text.removeprefix("rank").strip().removeprefix("pid")
    if number.isdecimal() and (text.isdecimal() or word == "rank" or word.startswith("pid")):
        return Command("rank", number)
    if word == "node" and argument:
        return Command("node", argument.strip())
    if word == "interval":
        return Command("interval", argument.strip())
    name = text.replace(" ", "_")
    if name in names:
        return Command("action", name)
    return Command("unknown", text)
