"""Fixes are named by nodes and worded here, wherever a node may send one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import hangtop_probe
from hangtop_core.attach.wire import messages
from hangtop_core.model.node.check import Check
from hangtop_core.model.recorder.columns import Unpacker
from hangtop_core.text import fixes
from hangtop_core.text.clean import SAID
from hangtop_core.text.commands import quoting
from hangtop_probe.wire import fixes as names
from support.pieces import EPOCH, process
from support.stored import Bench

EVIL = "fix it: sudo rm -rf `/`"
TOLD = SAID + "fix it: sudo rm -rf '/'"


@pytest.mark.parametrize("name", sorted(names.ALL))
def test_every_name_a_probe_knows_has_words(name: str) -> None:
    said = names.as_user("alice") if name == names.AS_USER else name
    words = fixes.text(said)
    assert words
    assert not words.startswith(SAID)
    assert "{}" not in words


def test_all_names_are_listed_and_the_probe_uses_no_other_fix() -> None:
    told = {
        value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)
    }
    assert told == names.ALL == fixes.TEXTS.keys()
    folder = Path(hangtop_probe.__file__).parent
    for path in folder.rglob("*.py"):
        if path.name == "recorder.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for given in _fixes_in(node):
                where = f"{path.name}:{given.lineno}"
                assert not isinstance(given, ast.Constant) or given.value is None, where


def _fixes_in(node: ast.AST) -> list[ast.expr]:
    """What is given for a fix in a call of `failure` or `Refused`, a keyword or an object."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == "fix"]
    if isinstance(node, ast.keyword):
        return [node.value] if node.arg == "fix" else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.args[2:3] if node.func.id in ("failure", "Refused") else []
    return []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("as-user alice", "run hangtop as alice, or: sudo hangtop"),
        ("as-user uid 1234", "run hangtop as uid 1234, or: sudo hangtop"),
        ("as-user CORP\\eve", "run hangtop as CORP\\eve, or: sudo hangtop"),
        ("as-user me; sudo reboot", SAID + "as-user me; sudo reboot"),
        ("as-user", SAID + "as-user"),
        ("sudo reboot", SAID + "sudo reboot"),
        ("\x1b[1mx", SAID + "x"),
        ("", None),
        (None, None),
    ],
)
def test_only_names_are_worded_and_all_else_is_quoted(said: str | None, words: str | None) -> None:
    assert fixes.text(said) == words


def test_a_quoted_fix_is_no_command_to_copy() -> None:
    assert quoting(TOLD).command == ""
    assert quoting(EVIL).command == ""
    assert quoting(fixes.TEXTS[names.YAMA]).command == "sudo hangtop"
    assert quoting(SAID + fixes.TEXTS[names.YAMA]).command == ""


def test_whatever_a_node_sends_has_the_heads_words() -> None:
    bench = Bench()
    fact = {"ok": False, "why": "because", "fix": EVIL}
    failure = {"kind": "denied", "text": "no", "fix": EVIL}
    denied = process(100, 0, denied=["no; sudo rm", EVIL])
    bench.fold(0, denied, process(101, 1), node={"capabilities": {"gdb": fact}})
    bench.sample(100, 1, stacks={}, threads=[], failure=failure)
    rest: dict[str, Any] = {"pid": 100, "at": EPOCH + 1, "failure": failure}
    bench.answers.descriptors("n1", messages.decode(rest, messages.DescriptorPiece))
    unpacker = Unpacker(bench.answers.shared)
    bench.answers.recorder("n1", messages.decode(rest, messages.RecorderPiece), unpacker)
    snapshot = bench.publish(2)
    rank = snapshot.jobs[0].ranks[0]
    hello = messages.decode({"protocol": 1, "capabilities": {"gdb": fact}}, messages.Hello)
    ranks = [{"pid": 1, "why": "no", "fix": EVIL}]
    trial = {"py_spy": {"failure": failure}}
    check = messages.decode({"at": EPOCH, "trial": trial, "ranks": ranks}, Check)
    assert rank.sample is not None
    assert rank.descriptors is not None
    assert rank.recorder is not None
    assert check.trial.py_spy is not None
    holders = [
        rank.sample.failure,
        rank.descriptors.failure,
        rank.recorder.failure,
        snapshot.nodes[0].capabilities["gdb"],
        hello.capabilities["gdb"],
        check.ranks[0],
        check.trial.py_spy.failure,
        messages.decode({"text": "no", "fix": EVIL}, messages.Problem),
    ]
    assert [one.fix for one in holders if one is not None] == [TOLD] * 8
    assert rank.process.denied == f"no, sudo rm; {TOLD}"
    assert not bench.wrong
    assert snapshot.jobs[0].ranks[1].process.denied is None
