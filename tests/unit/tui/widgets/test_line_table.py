"""The table: only what changed is refreshed, the cursor keeps its row, columns drop in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from textual.app import App, ComposeResult

from hangtop.terminal.columns import Column, Order
from hangtop.terminal.spans import line
from hangtop.widgets.line_table import LineTable
from support.large import operations

if TYPE_CHECKING:
    from textual.geometry import Region


@dataclass(frozen=True)
class Item:
    key: str
    count: int
    text: str


COLUMNS: tuple[Column[Item], ...] = (
    Column("key", "KEY", lambda item: line(item.key), lambda item: item.key, minimum=4),
    Column("count", "COUNT", lambda item: line(str(item.count)), lambda item: item.count,
           align="right", drop=2),
    Column("text", "TEXT", lambda item: line(item.text), minimum=6, maximum=40, flex=True, drop=1),
)  # fmt: skip


class Harness(App[None]):
    def compose(self) -> ComposeResult:
        yield LineTable[Item]("T", pane_id="t", columns=COLUMNS, key=lambda item: item.key)


def items(count: int) -> list[Item]:
    return [Item(f"k{number:05d}", number % 97, f"text {number}") for number in range(count)]


def table_of(app: Harness) -> LineTable[Item]:
    return app.query_one(LineTable)


def rows_of(table: LineTable[Item]) -> list[str]:
    return [table.render_line(y).text for y in range(table.size.height)]


async def test_only_changed_lines_are_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Harness()
    async with app.run_test(size=(60, 20)):
        table = table_of(app)
        data = items(100)
        table.set_items(data)
        seen: list[Region] = []
        monkeypatch.setattr(table, "refresh", lambda *regions, **_: seen.extend(regions))
        table.set_items(list(data))
        assert seen == []
        changed = [replace(one, count=555) if one.key == "k00003" else one for one in data]
        table.set_items(changed)
        assert [(region.y, region.height) for region in seen] == [(5, 1)]
        assert seen[0].width < 12
        seen.clear()
        far = [replace(one, count=555) if one.key == "k00090" else one for one in changed]
        table.set_items(far)
        assert seen == []


@dataclass
class Renewed:
    """A row that stays the same object."""

    key: str
    text: str
    count: int = 0
    looks: object = None
    heading: None = None


async def test_a_row_that_was_renewed_is_measured_and_drawn_anew() -> None:
    app = Harness()
    async with app.run_test(size=(60, 10)):
        table: LineTable[Any] = table_of(app)
        data = [Renewed(f"k{number:05d}", "short") for number in range(80)]
        table.set_items(data)
        data[2].text = data[70].text = "quite a long text"
        data[2].looks = data[70].looks = object()
        table.set_items(list(data))
        assert "quite a long text" in rows_of(table)[4]
        assert table._whole["text"] == len("quite a long text")
        data[2].text, data[2].looks = "short", object()
        table.set_items(list(data))
        assert table._whole["text"] == len("quite a long text"), "there is one out of view"
        assert "quite" not in rows_of(table)[4]


async def test_rows_of_others_and_headings_in_the_same_number_are_noticed() -> None:
    table: LineTable[Any] = LineTable(
        "T", pane_id="t", columns=COLUMNS, key=attrgetter("key"), heading=attrgetter("heading")
    )

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield table

    async with Alone().run_test(size=(60, 10)):
        data: list[Any] = [Renewed(f"k{number:05d}", "short") for number in range(8)]
        table.set_items(data)
        table.select("k00003")
        other = Renewed("k00100", "another one")
        table.set_items([*data[:3], other, *data[4:]])
        assert table.select("k00100")
        assert not table.select("k00003")
        head = SimpleNamespace(key="head", heading=line("HEADING"))
        table.set_items([data[0], head, *data[2:]])
        table.set_order(Order("key", inverted=True))
        assert [one.key for one in table.items][:3] == ["k00000", "head", "k00007"]
        table.set_items([*data[1:], data[0]])
        assert [one.key for one in table.items][-1] == "k00000"


async def test_what_is_refreshed_is_what_differs() -> None:
    app = Harness()
    async with app.run_test(size=(60, 20)) as pilot:
        table = table_of(app)
        data = items(30)
        table.set_items(data)
        await pilot.pause()
        table.set_items([replace(one, text=one.text + "!") for one in data[::-1]])
        await pilot.pause()
        shown = [strip.text for strip in app.screen._compositor.render_strips()]
        assert shown == rows_of(table)


async def test_cursor_stays_on_its_row() -> None:
    app = Harness()
    async with app.run_test(size=(60, 20)):
        table = table_of(app)
        table.set_items(items(50))
        table.select("k00007")
        table.set_order(Order("count", inverted=True))
        assert table.current is not None
        assert table.current.key == "k00007"
        table.set_items([*items(50)[20:], *items(8)])
        assert table.current.key == "k00007"
        assert any("k00007" in row and "▸" in row for row in rows_of(table))


async def test_cursor_goes_to_a_neighbour_when_its_row_is_gone() -> None:
    app = Harness()
    async with app.run_test(size=(60, 20)):
        table = table_of(app)
        table.set_items(items(10))
        table.select("k00005")
        table.set_items([one for one in items(10) if one.key != "k00005"])
        assert table.current is not None
        assert table.current.key == "k00006"


async def test_filter_and_empty_text() -> None:
    app = Harness()
    async with app.run_test(size=(60, 20)):
        table = table_of(app)
        table.set_items(items(50), [line("nothing here")])
        table.set_filter(lambda item: item.key.endswith("9"))
        assert len(table.items) == 5
        table.set_filter(lambda item: False)
        assert any("nothing here" in row for row in rows_of(table))


@pytest.mark.parametrize(
    ("width", "titles"), [(60, "KEY COUNT TEXT"), (24, "KEY TEXT"), (14, "KEY")]
)
async def test_columns_drop_by_priority(width: int, titles: str) -> None:
    app = Harness()
    async with app.run_test(size=(width, 10)):
        table = table_of(app)
        table.set_items(items(5))
        assert " ".join(rows_of(table)[1].strip("┃│ ").split()) == titles


async def test_moving_costs_as_much_with_eight_thousand_rows_as_with_eighty() -> None:
    few, many = await costs_of_moving(80), await costs_of_moving(8192)
    assert all(b < 1.2 * a for a, b in zip(few, many, strict=True)), (few, many)


async def costs_of_moving(count: int) -> list[int]:
    """Lines of Python that run for a row, a page, and to the end."""
    app = Harness()
    async with app.run_test(size=(120, 36)):
        table = table_of(app)
        table.set_items(items(count))
        moves = (table.move, table.move_page, table.move_end)
        return [operations(partial(move, 1)) for move in moves]


async def test_a_width_once_needed_is_given_back_where_room_lacks() -> None:
    app = Harness()
    async with app.run_test(size=(40, 20)):
        table = table_of(app)
        table.set_items([Item("a very long key, once", 1, "a text of twenty cell")])
        assert "twenty" not in rows_of(table)[2]
        table.set_items([Item("k", 1, "a text of twenty cell")])
        assert "a text of twenty cell" in rows_of(table)[2]


async def test_the_mark_of_the_order_does_not_cut_the_title() -> None:
    app = Harness()
    async with app.run_test(size=(60, 20)):
        table = table_of(app)
        table.set_items([Item("k", 1, "text")])
        table.set_order(Order("key"))
        assert "KEY▼" in rows_of(table)[1]
        table.set_order(Order("count", inverted=True))
        assert "COUNT▲" in rows_of(table)[1]


BESIDE: tuple[Column[Item], ...] = (
    Column("long", "LONG", lambda item: line(item.text), minimum=6, maximum=60, flex=True),
    Column("short", "SHORT", lambda item: line(item.key), minimum=3, maximum=20, flex=True),
)


class Pair(App[None]):
    def compose(self) -> ComposeResult:
        yield LineTable[Item]("T", pane_id="t", columns=BESIDE, key=lambda item: item.key)


async def test_a_long_text_does_not_cut_the_short_one_beside_it() -> None:
    app = Pair()
    async with app.run_test(size=(40, 8)):
        table = app.query_one(LineTable)
        table.set_items([Item("one-writes", 0, "x" * 50)])
        assert any("…" in row and "one-writes" in row for row in rows_of(table)), rows_of(table)
