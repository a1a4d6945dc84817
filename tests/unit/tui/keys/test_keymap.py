"""The registry of keys, and keys of the user's own."""

from __future__ import annotations

import pytest
from textual.keys import _character_to_key

from hangtop.keys import possible
from hangtop.keys.actions import key_from, key_name
from hangtop.keys.keymap import ACTIONS, Keymap
from hangtop.source.situation import Situation
from hangtop.terminal.spans import plain
from hangtop.views.verdict.headline import tabs


def test_without_a_file_keys_are_those_of_the_registry() -> None:
    assert Keymap().actions == ACTIONS


def test_no_key_means_two_things_on_one_screen() -> None:
    Keymap({action.id: action.keys for action in ACTIONS})  # raises where one does


def test_an_own_key_is_taken_from_what_it_did() -> None:
    keymap = Keymap({"redraw": ("p",)})
    for screen in ("overview", "rank"):
        found = keymap.find("p", screen)
        assert found is not None
        assert found.id == "redraw"
        left = keymap.find("Z", screen)
        assert left is not None
        assert left.id == "pause", "its other key stays"
    assert keymap.find("ctrl+l", "overview") is None


def test_an_own_key_is_taken_only_where_both_would_work() -> None:
    keymap = Keymap({"strace": ("r",)})
    on_rank, on_nodes = keymap.find("r", "rank"), keymap.find("r", "nodes")
    assert on_rank is not None
    assert on_rank.id == "strace"
    assert on_nodes is not None
    assert on_nodes.id == "retry"


def test_an_action_can_do_without_a_key() -> None:
    keymap = Keymap({"mouse": ()})
    assert keymap.find("M", "overview") is None
    assert keymap.shown("mouse") == ""


def test_ctrl_c_always_leaves() -> None:
    with pytest.raises(ValueError, match="Ctrl-c always"):
        Keymap({"copy": ("ctrl+c",)})
    assert Keymap({"leave": ("X",)}).by_id["leave"].keys == ("X", "ctrl+c")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"fly": ("f",)}, "'fly' is no action"),
        ({"copy": ("X",), "pager": ("X",)}, "X is given to copy and pager"),
    ],
)
def test_what_makes_no_sense_is_refused(own: dict[str, tuple[str, ...]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Keymap(own)


@pytest.mark.parametrize("key", sorted({key for action in ACTIONS for key in action.keys}))
def test_every_key_can_be_written_as_it_is_shown(key: str) -> None:
    assert key_from(key_name(key)) == key


@pytest.mark.parametrize(
    ("text", "key"),
    [("Ctrl-q", "ctrl+q"), ("ctrl+Q", "ctrl+q"), ("=", "equals_sign"), ("_", "underscore")],
)
def test_other_keys_can_be_written_too(text: str, key: str) -> None:
    assert key_from(text) == key


@pytest.mark.parametrize("text", ["«", "§", "€", "-", "_", "@", "¦", "¬", "é", "Ü", "ß", "µ", "²"])
def test_a_key_is_what_textual_calls_it_and_is_shown_as_it_was_written(text: str) -> None:
    assert key_from(text) == _character_to_key(text)
    assert key_name(key_from(text)) == text


@pytest.mark.parametrize("text", ["", "xx", "Ctrl-", "F13", "\t", "Hyper-x"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        key_from(text)


def test_the_screens_are_named_with_the_keys_that_open_them() -> None:
    keymap = Keymap({"overview": ("f2",), "logs": ()})
    told = plain(tabs("stacks", keymap, 100, files=False))
    assert told.startswith("  F2 Overview   2 Stacks   3 Rank ")
    assert " 8 " not in told
    assert plain(tabs("verdict", Keymap(), 100, files=True)) == "  4 Recorder   5 Verdict"


def test_why_something_is_not_possible_names_the_users_own_keys() -> None:
    own = Keymap({"stop": ("X",), "step_back": ("Z",), "strace": ()}).names()

    def now(**facts: bool) -> Situation:
        return Situation("rank", keys=own, **facts)  # type: ignore[arg-type]

    assert possible.can_strace(now(tracing=True)) == "a trace is running; X stops it"
    assert possible.has_later(now()) == "this is live: Z goes back"
    assert possible.has_trace(now()) == "there is no trace"
    assert "; Z ] step through it" in (possible.can_pause(now(live=False)) or "")
