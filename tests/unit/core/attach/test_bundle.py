"""What is sent to nodes."""

from __future__ import annotations

import ast

import pytest

from hangtop_core.attach import bundle


def without_texts(source: bytes) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


@pytest.mark.parametrize("name", sorted(bundle._source(bare=True)))
def test_what_is_left_out_for_an_argument_does_not_run(name: str) -> None:
    whole, bare = bundle._source()[name], bundle._source(bare=True)[name]
    assert without_texts(bare) == without_texts(whole)
    assert len(bare) <= len(whole)


def test_signs_beyond_ascii_and_in_strings_stay() -> None:
    source = 'def f():\n    """Döc."""  # nöt\n    return "# ö", 1  # gone\n'.encode()
    assert bundle._bare(source).decode() == "def f():\n    ''\n    return \"# ö\", 1\n"


def test_what_needs_a_probe_that_can_be_told_something_is_not_pushed() -> None:
    left_out = set(bundle._source()) - set(bundle._source(bare=True))
    nettest = {name for name in bundle._source() if name.startswith("nettest")}
    assert left_out == {"strace.py", "ras.py", *nettest}
    assert nettest
