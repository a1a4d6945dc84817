"""Since when a main thread has not left a `while`: by its calls, its frames and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.state.while_loops import Whiles
from support.situations import frame

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Frame


def stack(text: str = "while left:", inner: str = "train.py", line: int = 9) -> tuple[Frame, ...]:
    """`main` calls `pack`, which calls another function in a loop."""
    called = replace(frame("best", inner, 3), within=() if inner == "train.py" else None)
    return (
        called,
        replace(frame("pack", "train.py", 21), within=((20, text),)),
        replace(frame("main", "train.py", line), within=()),
    )


def test_it_is_in_the_loop_since_it_was_first_seen_there_by_the_same_calls() -> None:
    whiles = Whiles()
    told = ((frame("pack", "train.py", 21).file, "pack", 20, 10.0),)
    assert whiles.see(stack(), 10.0) == told
    assert whiles.see(stack()[1:], 15.0)[0][3] == 10.0
    assert whiles.see(stack(line=11), 20.0)[0][3] == 20.0
    assert whiles.see(stack(line=11), 25.0)[0][3] == 20.0
    whiles.forget()
    assert whiles.see(stack(line=11), 30.0)[0][3] == 30.0


def test_loops_that_end_and_those_that_run_libraries_are_left_out() -> None:
    whiles = Whiles()
    for text in (
        "for x in left:",
        "while len(out) < size:",
        "while columns := board.legal():",
        "while time.monotonic() - began:",
        "while not next(done):",
        "while queue:  # ends",
    ):
        assert whiles.see(stack(text), 10.0) == ()
    library = "/lib/python3.11/site-packages/numpy/core/fromnumeric.py"
    assert whiles.see(stack(inner=library), 10.0) == ()
    assert whiles.see(stack(inner="/usr/lib/python3.11/random.py"), 10.0)
