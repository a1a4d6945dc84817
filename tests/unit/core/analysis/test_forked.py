"""Forked children: below their own frames stand those of their parent, which they are not in."""

from __future__ import annotations

import pytest

from hangtop_core.analysis.frames import since_fork
from hangtop_core.stacktable import StackTable
from support.build import BASE, Stack, frame, user

OWN: Stack = (
    frame("Pipe.read", "webdataset/gopen.py", 104),
    frame("_worker_loop", "torch/utils/data/_utils/worker.py", 349),
    frame("BaseProcess.run", "py:multiprocessing/process.py", 108),
    frame("BaseProcess._bootstrap", "py:multiprocessing/process.py", 314),
)
PARENT: Stack = (
    frame("Popen._launch", "py:multiprocessing/popen_fork.py", 71),
    frame("Popen.__init__", "py:multiprocessing/popen_fork.py", 19),
    frame("BaseProcess.start", "py:multiprocessing/process.py", 121),
    *user("fit", 59),
)


@pytest.mark.parametrize(
    ("stack", "kept"),
    [
        (OWN + PARENT, OWN),
        (PARENT, PARENT),  # the parent itself, as it forks
        (OWN + PARENT[:3] + OWN[1:] + PARENT, OWN),  # forked by who was forked
        (OWN + BASE, OWN + BASE),  # spawned
        ((frame("_bootstrap", "py:multiprocessing/process.py", 1),
          frame("_launch", "billiard/popen_fork.py", 2), *BASE),
         (frame("_bootstrap", "py:multiprocessing/process.py", 1),)),
    ],
)  # fmt: skip
def test_the_frames_of_the_parent_are_left_out(stack: Stack, kept: Stack) -> None:
    assert since_fork(stack) == kept


def test_stacks_are_kept_without_them() -> None:
    table = StackTable()
    table.add("a", OWN + PARENT)
    assert table.publish()["a"] == OWN
