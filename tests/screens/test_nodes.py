"""Nodes on the screens: their own page, groups by node, retry, a shell, and going back in time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop.application import HangtopApp
from hangtop.source.lookup import rank_key
from hangtop.terminal import pager
from hangtop.views.common import span
from hangtop.views.ranks.ranks import class_of
from hangtop.widgets import text_pane
from hangtop_core.attach.wire.command_log import CommandRecord
from support.player import app_for, keys, player_of
from support.record import load

if TYPE_CHECKING:
    import pytest

    from hangtop.terminal.spans import Line
    from hangtop_core.model.updates import Update

replace = msgspec.structs.replace
SIZE = (120, 36)
LOST = load("cluster").snapshot.nodes[2]
NOW = load("cluster").snapshot.at + 0.4
QUIET, LASTING = span(NOW - (LOST.last_seen or 0.0)), span(NOW - LOST.since)


def changed(update: Update, seconds: float = 1.0, **states: dict[str, Any]) -> Update:
    """The same picture later, with fields of nodes changed; `node_3` is node-3."""
    nodes = tuple(
        replace(node, **states.get(node.name.replace("-", "_"), {}))
        for node in update.snapshot.nodes
    )
    at = update.snapshot.at + seconds
    return replace(update, snapshot=replace(update.snapshot, at=at, nodes=nodes))


def column(text: str, word: str) -> list[str]:
    """Lines of the table that hold a word."""
    return [row for row in text.splitlines() if word in row and row.startswith(("┃", "│"))]


async def test_the_worst_node_comes_first_with_what_to_do() -> None:
    app = app_for(load("cluster"))
    player_of(app).commands = (
        CommandRecord(1, "node-3", (35,), "py-spy dump --nonblocking", 1.0, True, outcome="lost"),
        CommandRecord(2, "node-1", (36,), "read /proc/PID/fd", 1.0, True, outcome="done"),
    )
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "9")
        names = [row.split()[1].strip("▸") or row.split()[2] for row in column(text, "node-")[:4]]
        assert names == ["node-3", "node-4", "node-1", "node-2"]
        assert "fix       the capture says: look at its console" in text
        assert f"lost for {LASTING}  last heard {QUIET} ago" in text
        assert "py-spy dump" in text
        assert "read /proc/PID/fd" not in text, "a command of another node"
        text = await keys(pilot, "down")
        assert "check that sshd runs on node-4" in text
        assert "has not said hello yet" in text
        text = await keys(pilot, "end")
        assert "NODE  node-2" in text
        assert "Welcome to node-2" in await keys(pilot, "tab", "end")


async def test_the_fix_is_what_y_copies_first(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_for(load("cluster"))
    copied: list[str] = []
    monkeypatch.setattr(app, "_to_clipboard", copied.append)
    async with app.run_test(size=SIZE) as pilot:
        await keys(pilot, "9", "down", "tab", "y")
        assert copied == ["the capture says: check that sshd runs on node-4"]


async def test_retry_of_one_and_of_all_and_not_of_what_answers() -> None:
    app = app_for(load("cluster"))
    asked = player_of(app).asked
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "9", "r")
        assert [ask for ask in asked if ask[0] == "retry"] == [("retry", "node-3")]
        assert "connecting to node-3 again" in text
        asked.clear()
        text = await keys(pilot, "R")
        assert [name for kind, name in asked if kind == "retry"] == ["node-3", "node-4"]
        assert "connecting to node-[3-4] again" in text
        asked.clear()
        assert "node-2 is connected" in await keys(pilot, "end", "r")
        assert asked == []


async def test_equal_nodes_stand_in_one_row_and_come_apart() -> None:
    update = load("cluster")
    why = {"state": "unreachable", "reason": "no route; connecting again in 7 s"}
    update = changed(update, 0.0, node_1=why, node_2={**why, "reason": "no route"})
    app = app_for(update)
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "9", "t")
        (row,) = column(text, "node-[1-2]")
        assert "no route" in row
        assert "0-3" in row
        text = await keys(pilot, "home")
        assert "and 1 more like it" in text
        await keys(pilot, "r")
        retried = [name for kind, name in player_of(app).asked if kind == "retry"]
        assert retried == ["node-1", "node-2"]
        text = await keys(pilot, "enter")
        assert "node-[1-2]" not in text
        assert "NODE  node-1" in text


async def test_enter_leads_to_the_ranks_of_a_node() -> None:
    app = app_for(load("cluster"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "9", "enter")
        assert app.current_mode == "overview"
        assert "filter node=node-3" in text
        assert [row.rank.rank for row in app.screen.ranks.items] == [4, 5]  # type: ignore[attr-defined]
        text = await keys(pilot, "escape", "9", "down", "enter")
        assert app.current_mode == "nodes"
        assert "no rank is seen on node-4" in text


async def test_filters_of_nodes() -> None:
    app = app_for(load("cluster"))
    async with app.run_test(size=SIZE) as pilot:

        def names() -> list[str]:
            return [row.name for row in app.screen.table.items]  # type: ignore[attr-defined]

        await keys(pilot, "9", "slash", *"state!", "equals_sign", *"ready", "enter")
        assert names() == ["node-3", "node-4"]
        await keys(pilot, "escape", "slash", *"2-3", "enter")
        assert names() == ["node-2"]
        await keys(pilot, "escape", "slash", *"seen", "greater_than_sign", *"20", "enter")
        assert names() == ["node-3"]
        text = await keys(pilot, "escape", "slash", *"zzz", "enter")
        assert "No row passes the filter" in text


async def test_a_node_goes_slow_is_lost_and_comes_back_with_its_age() -> None:
    update = load("cluster")
    at = update.snapshot.at
    fine = {"state": "ready", "reason": None, "fix": None, "last_seen": at}
    start = changed(update, 0.0, node_3=fine)
    app = app_for(start)
    times = [at]
    app.real_now = lambda: times[0]  # type: ignore[method-assign]
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot)
        assert "3/4 nodes" in text
        assert "node-3 " not in text.splitlines()[0]
        for second, state in ((4.0, "slow"), (20.0, "lost")):
            times[0] = at + second
            player_of(app).play(changed(start, second, node_3={"state": state}))
            text = await keys(pilot, "1")
            assert f"{state} {second:.0f} s" in text
            text = await keys(pilot, "3")
            assert f"node-3 {state}, seen {second:.0f} s ago" in text
            text = await keys(pilot, "2")
            assert f"4-5 seen {second:.0f} s ago" in text
        text = await keys(pilot, "3", "b")
        assert "node-3 is lost: it cannot be asked" in text
        player_of(app).play(changed(start, 21.0, node_3={"last_seen": at + 21}))
        text = await keys(pilot, "1")
        assert "3/4 nodes" in text
        assert "node-3 " not in text.splitlines()[0]
        assert "lost" not in text.split("sort suspicion")[-1]


async def test_groups_fold_filter_and_mark() -> None:
    app = app_for(load("cluster"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "t")
        (head,) = column(text, "▾ node-3")
        assert f"lost, seen {QUIET} ago" in head
        assert column(text, "node-4")[-1].count("no rank seen") == 1
        text = await keys(pilot, "home", "enter")
        (head,) = column(text, "▸ node-3")
        assert "◀ culprit" in head
        assert len(column(text, "node-unreachable")) == 0
        text = await keys(pilot, "space")
        assert "marked 2" in text
        text = await keys(pilot, "slash", "4", "enter")
        assert len(column(text.split("RANKS")[-1], "gloo_job.py")) == 1, "filters look into groups"
        text = await keys(pilot, "escape", "asterisk")
        assert len(column(text.split("RANKS")[-1], "gloo_job.py")) == 6
        text = await keys(pilot, "greater_than_sign", "I")
        order = [row.split()[2] for row in column(text.split("RANKS")[-1], "gloo_job.py:")]
        assert order[:2] == ["5", "4"], "sorted under their headings"
        text = await keys(pilot, "U", "home", "down", "a")
        job, rank = app.state.job, app.state.rank
        assert job is not None
        assert rank is not None
        same = {rank_key(one) for one in job.ranks if class_of(one) == class_of(rank)}
        assert app.state.marks == same
        assert f"{len(same)} rank" in text
        text = await keys(pilot, "t")
        assert "by class" in text
        text = await keys(pilot, "t")
        assert "▾" not in text


async def test_two_marked_ranks_are_compared() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "home", "d")
        assert "this rank and the majority: 3 ranks, 0-1,3" in text
        assert [row for row in text.splitlines() if " | " in row]
        await keys(pilot, "escape", "down", "space", "space", "d")
        text = await keys(pilot)
        assert "the two marked ranks" in text
        assert not [row for row in text.splitlines() if " | " in row], "they are on one stack"
        text = await keys(pilot, "escape", "home", "U", "end", "d")
        assert "the smallest class: 1 rank, 2" in text


async def test_pictures_before_can_be_seen_again() -> None:
    update = load("skip")
    app = app_for(update)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        for second in (1, 2):
            player_of(app).play(changed(update, second))
            await pilot.pause()
        gone = replace(update, snapshot=replace(changed(update, 3).snapshot, jobs=()))
        player_of(app).play(gone)
        assert "No training job" in await keys(pilot)
        text = await keys(pilot, "left_square_bracket")
        assert "paused" in text
        assert "missing-collective" in text
        assert app.state.snapshot is not None
        assert app.state.snapshot.at == update.snapshot.at + 2
        player_of(app).play(changed(gone, 4))
        assert "missing-collective" in await keys(pilot), "it is held"
        text = await keys(pilot, *["left_square_bracket"] * 3)
        assert app.state.snapshot.at == update.snapshot.at
        assert "no earlier picture is kept" in text
        text = await keys(pilot, *["right_square_bracket"] * 5)
        assert "live again" in text
        assert "No training job" in text
        assert not app.state.paused


async def test_a_shell_says_what_it_runs_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Any, str]] = []
    monkeypatch.setattr(pager, "shell", lambda command, where: ran.append((command, where)))
    monkeypatch.setattr(HangtopApp, "suspend", lambda self: contextlib.nullcontext())
    app = app_for(load("cluster"), readonly=True)
    async with app.run_test(size=SIZE) as pilot:
        await keys(pilot, "exclamation_mark")
        assert ran == [
            (["ssh", "node-3"], "your shell on node-3; --readonly binds hangtop, not you")
        ]
        await keys(pilot, "9", "down", "exclamation_mark")
        assert ran[1][0] == ["ssh", "node-4"]
        noted = [ask for ask in player_of(app).asked if ask[0] in ("note_command", "ended")]
        assert noted[0] == ("note_command", ("node-3", "ssh node-3"))
        assert noted[1] == ("ended", "done")
        monkeypatch.setattr(player_of(app), "shell", lambda node: None)
        assert "knows no command for a shell" in await keys(pilot, "exclamation_mark")
        assert "hangtop was started with --readonly" in await keys(pilot, "T")


async def test_the_network_is_tested_after_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(pager, "report", lambda command, where: ran.append(command))
    monkeypatch.setattr(HangtopApp, "suspend", lambda self: contextlib.nullcontext())
    app = app_for(load("cluster"))
    async with app.run_test(size=SIZE) as pilot:
        assert "not started on nodes that could be tested" in await keys(pilot, "T")
        app.nettest = ("python", "-m", "hangtop", "nettest", "--nodes=node-[1-4]")
        text = await keys(pilot, "T")
        assert "hangtop nettest '--nodes=node-[1-4]' --port=29511" in text
        assert "not run" in await keys(pilot, "n")
        assert ran == []
        await keys(pilot, "T", "y")
        assert ran == [[*app.nettest, "--port=29511"]]
        assert ("ended", "done") in player_of(app).asked


async def test_a_trace_can_be_read_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[str] = []

    def wrap(spans: Line, width: int, indent: int = 0) -> list[Line]:
        wrapped.extend(one.text for one in spans if "call_" in one.text)
        return laid_out(spans, width, indent)

    laid_out = text_pane.wrap
    monkeypatch.setattr(text_pane, "wrap", wrap)
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await keys(pilot, "3", "s", "y")
        tracing = player_of(app).tracing
        assert tracing is not None
        tracing[1]([f"00:00:0{n % 10} call_{n}(" for n in range(80)])
        assert "call_79" in await keys(pilot, "f", "f", "f", "f"), "its lines, not folded"
        text = await keys(pilot, "F", "home")
        assert "call_0(" in text
        tracing[1](["00:00:09 call_80("])
        assert "call_0(" in await keys(pilot)
        assert "call_80" in await keys(pilot, "F")
        wrapped.clear()
        calls = range(81, 93)
        tracing[1]([f"00:00:09.1 call_{n}({'x' * 200}) = 0 <0.100>" for n in calls])
        assert "call_92" in await keys(pilot)
        assert [one[11:18] for one in wrapped] == [f"call_{n}" for n in calls], "no line twice"
        assert "thread 4004 (main)" in await keys(pilot, "f"), "calls are seen from the first on"


async def test_the_palette_finds_nodes_without_ranks() -> None:
    app = app_for(load("cluster"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "colon", *"node-4")
        assert "unreachable, 9 Nodes" in text
        text = await keys(pilot, "enter")
        assert app.current_mode == "nodes"
        assert "NODE  node-4" in text
        await keys(pilot, "colon", *"node-1", "enter")
        assert app.current_mode == "overview"


async def test_groups_of_nodes_keep_their_reason_on_a_narrow_screen() -> None:
    update = load("cluster")
    nodes = tuple(
        replace(node, name=f"{node.name}{copy or ''}")
        for node in update.snapshot.nodes
        for copy in range(6)
    )
    app = app_for(replace(update, snapshot=replace(update.snapshot, nodes=nodes)))
    async with app.run_test(size=(80, 24)) as pilot:
        text = await keys(pilot, "9", "t")
        assert "node-[4,41-45]" in text
        assert "REASON" in text
        assert "nobody answers on" in text
        assert "◀ 2 culprits" in text
