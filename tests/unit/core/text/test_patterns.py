"""Patterns that meet words of nodes, and of others who may write anything: none takes for ever.

Each text is of the size that such a text may have (a name 4,096 characters, what ssh says 16 KiB),
and made for the pattern: with one that backtracks, these take from seconds to minutes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.native import called
from hangtop_core.analysis.sourcelines import _SOURCES
from hangtop_core.analysis.verdict.callers import rank_conditions
from hangtop_core.analysis.verdict.saving import Saver, _of_checkpoint, _saves
from hangtop_core.attach.ways.reasons import COMMANDS, PDSH, TABLE, Context, explain_login
from hangtop_core.model.frames import is_library
from hangtop_core.model.snapshot import Frame
from hangtop_core.tools.strace import explained
from hangtop_probe.stacks.blocks import statements
from hangtop_probe.stacks.worklists import ends
from hangtop_probe.wire.pieces import listed

if TYPE_CHECKING:
    from collections.abc import Callable

CPU_S = 1.5
"""Each takes some hundredths of a second here."""
FRAMES = 20
CONTEXT = Context("n1", ("ssh", "n1"), "python3", False, ("ssh", "n1", "python3", "-V"))


def name(unit: str, start: str = "") -> str:
    return (start + unit * 4096)[:4090] + "!"


def frames(look: Callable[[Frame], object], file: str) -> None:
    for line in range(FRAMES):
        look(Frame("f", file, "", line))


def sources(text: str) -> None:
    for _ in range(FRAMES):
        for _, pattern, _ in _SOURCES:
            pattern.search(text)


def conditions(text: str) -> None:
    for line in range(FRAMES):
        rank_conditions(Frame("f", "/a.py", "a.py", line, within=((line, text),)))


def endings(unit: str) -> None:
    text = (unit * 16_384)[: 16 << 10]
    for table in (TABLE, PDSH, COMMANDS):
        explain_login(255, text, False, CONTEXT, table)
        explain_login(255, "", False, CONTEXT, table, log=text)


def saving(function: str, file: str) -> None:
    for _ in range(FRAMES):
        _saves(Frame(function, "/a.py", "a.py", 1))
        _of_checkpoint(file)
        _ = Saver(function).what


def body_of_a_loop(text: bytes) -> None:
    lines = [b"while queue:", b"    " + text]
    ends(statements(b"\n".join(lines)), lines, 1)


HARD: dict[str, Callable[[], object]] = {
    "library": partial(frames, is_library, name("torch/a/")),
    "plumbing": partial(frames, lambda frame: called([frame]), name(".", "python")),
    "source": partial(sources, name("storea")),
    "condition": partial(conditions, name("rank", "if ")),
    "host key": partial(endings, "Offending a key in a:00 H"),
    "host keys": partial(endings, "Offending a key in a:0\nHost key for a has not "),
    "refused": partial(endings, "Permission denied ("),
    "saves": partial(saving, name("dump"), name(".~", "/a/step_1.pt")),
    "saved": partial(saving, name("(", "checkpoint"), name("_tmp", "/a/ckpt.pt")),
    "worklist": partial(body_of_a_loop, b" " * 400_000 + b"queue.pop()"),
    "addresses": partial(explained, "5<TCP:" + "[->" * 5000 + "]>", {}),
    "loader": partial(listed, b"/" * (8 << 20)),
    "no program": partial(endings, 'exec "a": stat '),
}


@pytest.mark.parametrize("what", HARD)
def test_it_takes_no_long_whatever_is_written(what: str) -> None:
    began = time.process_time()
    HARD[what]()
    assert time.process_time() - began < CPU_S
