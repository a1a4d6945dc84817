"""Commands for people: whatever a word is, a shell runs exactly what is shown."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mypy import api

from hangtop_core.analysis.verdict.steps import spelt
from hangtop_core.model.snapshot import Node
from hangtop_core.text.commands import (
    Advice,
    Command,
    Glob,
    HiddenWordError,
    Sign,
    shown,
    spell,
    spelt_or_why,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PRINTS = ("printf", "%s\\0")
NASTY = ("'", '"', "$(id)", "`id`", ";", "&", "|", "\\", "*", "?", "~", "#", "!", "=", "{a,b}", "")
WORDS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(NASTY)), max_size=6)
HIDDEN = (
    *("a\nb", "a\rb", "a\tb", "a\x1b[31mb", "a\x07b", "a\x7fb", "a\x9bb", "a\u202eb", "a\u200bb"),
    *("a\u3164b", "a\udc80b", "a\xa0b", "a\u2028b", "a\0b", "\n", "\x1b]52;c;eA==\x07", "a  b"),
)


def run(text: str) -> list[str]:
    """What a POSIX shell takes a text for: each word of it."""
    done = subprocess.run(["sh", "-c", text], capture_output=True, check=True, timeout=10)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@settings(max_examples=60, deadline=None)
@given(WORDS)
@example([*NASTY])
@example(["-n", "--", " a ", "a b"])
def test_a_shell_runs_exactly_the_words_of_what_is_shown(words: list[str]) -> None:
    try:
        text = spell((*PRINTS, *words, "end"))
    except HiddenWordError:
        assert any(not word.isprintable() or "  " in word or not word.isascii() for word in words)
        return
    assert text.isprintable(), "one line, as it is seen"
    assert run(text) == [*words, "end"]


@pytest.mark.parametrize("word", HIDDEN, ids=ascii)
def test_what_no_screen_shows_is_refused_with_a_reason(word: str) -> None:
    with pytest.raises(HiddenWordError, match="characters that no screen shows"):
        spell(("ls", word))
    assert spelt_or_why(("ls", word)).startswith("(no command: ")
    step = shown(Command("n1", ("fuser", "-v", word), "see who has it open"))
    assert step.command == ""
    assert step.text == "see who has it open: a name in it has characters that no screen shows"


@settings(max_examples=30, deadline=None)
@given(WORDS)
def test_through_a_login_and_sudo_the_words_arrive_whole(words: list[str]) -> None:
    """A login hands the rest of its command line to a shell, as ssh does."""
    login = "env -u NOTHING sh -c"
    node = Node(name="n1", shell=login)
    step = spelt(Command("n1", (*PRINTS, *words, "end")), {"n1": node})
    if step.command:
        assert run(step.command) == [*words, "end"]


def test_signs_mean_to_a_shell_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a 1").touch()
    (tmp_path / "a 2").touch()
    files = Glob((f"{tmp_path}/a ", ""))
    assert run(spell((*PRINTS, files))) == [f"{tmp_path}/a 1", f"{tmp_path}/a 2"]
    both = (*PRINTS, "a;b", Sign.THEN, *PRINTS, "c", Sign.PIPE, "cat")
    assert run(spell(both)) == ["a;b", "c"]
    assert run(spell(("false", Sign.OR, *PRINTS, "x", Sign.AND, *PRINTS, "|"))) == ["x", "|"]


def test_a_word_that_is_spelt_as_a_sign_is_none() -> None:
    signs = [str(sign.value) for sign in Sign if "\0" not in str(sign.value)]
    assert run(spell((*PRINTS, *signs))) == signs


@pytest.mark.parametrize("step", ["rm -rf x", "look there", 7, None])
def test_a_plain_text_is_no_step(step: Any) -> None:
    with pytest.raises(TypeError):
        shown(step)
    with pytest.raises(TypeError):
        spelt(step, {})
    with pytest.raises(TypeError):
        Command("n1", cast("tuple[str, ...]", "rm -rf x"))


WRONG = """
import re
from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.evidence import verdict
from hangtop_core.analysis.launch import Contradiction
from hangtop_core.attach.connect.launcher import ByHand, Ending
from hangtop_core.attach.ways.reasons import KnownEnding
from hangtop_core.nettest.facts import Finding
from hangtop_core.analysis.verdict.base import Hit
from hangtop_core.analysis.verdict.steps import spelt
from hangtop_core.text.commands import Advice, Command

Hit(subjects=(), summary="", evidence=(), steps=(Advice("a"), Command("n1", ("a", "b"))))
Hit(subjects=(), summary="", evidence=(), steps=("a",))
spelt("a", {})
Command("n1", "a b")
Ending("denied", "", False, "a")
Finding("", "note", "", next_steps=("a",))
verdict(patterns.MISSING, "", (), (), (), ("a",))
Contradiction("", (), "a")
ByHand("a b")
KnownEnding(re.compile(""), "denied", "", "a")
"""


def test_a_type_checker_refuses_a_plain_text_as_a_step(tmp_path: Path) -> None:
    """The right line gives no error, and each of the wrong ones does."""
    program = tmp_path / "wrong.py"
    program.write_text(WRONG)
    root = Path(__file__).parents[4]
    said, _, _ = api.run(["--config-file", str(root / "pyproject.toml"), str(program)])
    lines = [int(one.split(":")[1]) for one in said.splitlines() if ": error: " in one]
    assert sorted(set(lines)) == list(range(14, 23)), said


def test_advice_names_only_commands_of_ours() -> None:
    assert shown(Advice("`hangtop flight` reads them")).command == "hangtop flight"
    hostile: Sequence[str] = (
        "look at /tmp/x: sudo reboot",
        "look at /tmp/`hangtop --init reboot`/x",
        "`hangtop run -- reboot`",
        "`reboot`",
    )
    assert [shown(Advice(text)).command for text in hostile] == ["", "", "", ""]
