"""Who asks for what rules need: once, few at a time, and nothing that pauses without leave."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from hangtop_core.collect.needs import A_MINUTE, AGAIN_S, AT_ONCE, LIMIT_S, PAUSED, Needs
from hangtop_core.collect.requests import Ask
from hangtop_core.diagnosis import Diagnosis, Need, NeedKind, NeedState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.collect.collector import Collector


class Link:
    can_ask = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.unsupported: set[str] = set()


class Nodes(dict[str, Link]):
    def __missing__(self, name: str) -> Link:
        return self.setdefault(name, Link(name))

    def get(self, name: str, default: Any = None) -> Link:
        return self[name]


class Node:
    """Stands for a collector, at its edge: notes what would be asked, and of whom."""

    def __init__(self) -> None:
        self.links = Nodes()
        self.asks = self.store = self
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.under_way: dict[str, set[str]] = defaultdict(set)

    def live(self, node: str, pid: int) -> object:
        return object()

    def busy(self, node: str) -> set[str]:
        return self.under_way[node]

    def descriptors(self, pids: Sequence[int], **_: object) -> Ask:
        return Ask("descriptors", tuple(pids), {}, "", lambda *_: None, 1.0)

    def recorder(self, node: str, pids: Sequence[int], **_: object) -> Ask:
        return Ask("recorder", tuple(pids), {}, "", lambda *_: None, 1.0)

    def log(self, node: str, pids: Sequence[int], **_: object) -> Ask:
        return Ask("log", tuple(pids), {}, "", lambda *_: None, 1.0)

    def stacks(self, pids: Sequence[int], mode: str, **_: object) -> Ask:
        return Ask("stacks", tuple(pids), {}, mode, lambda *_: None, 1.0)

    def ask_unattended(self, link: Link, ask: Ask) -> None:
        self.asked.append((ask.what or ask.op, ask.pids))
        self.under_way[link.name].add(ask.op)

    read_log = ask_unattended


def need(pid: int = 10, kind: NeedKind = "descriptors", state: NeedState = "wanted") -> Need:
    return Need(kind, pid, f"n{pid}", pid, "why", state)


def make(node: Node, *, readonly: bool = False, allow_pause: bool = False) -> Needs:
    return Needs(cast("Collector", node), readonly=readonly, allow_pause=allow_pause)


def states(needs: Needs, now: float, *some: Need) -> list[str]:
    made = Diagnosis("", "", "", 1.0, "hung", 9.0, None, None, needs=some)
    return [one.state for one in needs.take({"k": made}, now)["k"].needs]


def test_what_is_wanted_is_asked_for_once() -> None:
    node = Node()
    needs = make(node)
    assert states(needs, 0.0, need()) == ["asked"]
    assert states(needs, 1.0, need()) == ["asked"]
    node.under_way.clear()
    assert states(needs, 2.0, replace(need(), state="answered")) == ["answered"]
    assert node.asked == [("descriptors", (10,))]
    # WHEN it is wanted again a minute later
    assert states(needs, AGAIN_S - 1, need()) == ["not possible"]
    assert len(node.asked) == 1
    assert states(needs, AGAIN_S + 1, need()) == ["asked"]
    assert len(node.asked) == 2


def test_an_answer_is_not_waited_for_longer_than_its_time() -> None:
    needs = make(Node())
    assert states(needs, 0.0, need()) == ["asked"]
    assert states(needs, LIMIT_S - 0.1, need()) == ["asked"]
    assert states(needs, LIMIT_S, need()) == ["not possible"]
    late = replace(need(), state="answered")
    assert states(needs, LIMIT_S + 3, late) == ["answered"]


def test_a_node_that_is_busy_is_asked_later() -> None:
    node = Node()
    node.under_way["n10"].add("descriptors")
    needs = make(node)
    assert states(needs, 0.0, need()) == ["wanted"]
    assert not node.asked
    node.under_way.clear()
    assert states(needs, 0.5, need()) == ["asked"]


def test_8192_suspects_are_not_asked_at_once() -> None:
    node = Node()
    needs = make(node)
    some = [need(pid) for pid in range(1, 8193)]
    assert states(needs, 0.0, *some).count("asked") == AT_ONCE
    for second in range(1, 50):
        node.under_way.clear()
        states(needs, float(second), *some)
        assert sum(map(bool, node.under_way.values())) <= AT_ONCE
    assert len(node.asked) == A_MINUTE


def test_read_only_touches_nothing() -> None:
    node = Node()
    needs = make(node, readonly=True, allow_pause=True)
    some = [need(1, "recorder"), need(2, "native stacks", "needs consent"), need(3)]
    assert states(needs, 0.0, *some) == ["not possible", "not possible", "asked"]
    assert node.asked == [("descriptors", (3,))]


def test_nobody_is_paused_without_leave() -> None:
    node = Node()
    assert states(make(node), 0.0, need(2, "native stacks", "needs consent")) == ["needs consent"]
    assert not node.asked


def test_with_leave_two_ranks_are_paused_and_each_once() -> None:
    node = Node()
    needs = make(node, allow_pause=True)
    some = [need(pid, "native stacks", "needs consent") for pid in (1, 2, 3)]
    assert states(needs, 0.0, *some) == ["asked", "asked", "needs consent"]
    node.under_way.clear()
    assert states(needs, AGAIN_S * 2, *some) == ["needs consent"] * 3
    assert node.asked == [("native", (1,)), ("native", (2,))][:PAUSED]


def test_what_needs_no_asking_is_left_alone() -> None:
    node = Node()
    some = [need(1, state="answered"), need(2, "recorder", "needs consent")]
    assert states(make(node, allow_pause=True), 0.0, *some) == ["answered", "needs consent"]
    node.links["n3"].can_ask = False
    node.links["n4"].unsupported.add("descriptors")
    assert states(make(node), 0.0, need(3), need(4)) == ["not possible", "not possible"]
    assert not node.asked
