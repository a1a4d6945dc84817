"""What one rank is to do while the others wait is a long phase; anything else a straggler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.session.observing import decided
from support.build import NOW, World, judged
from support.situations import BACKWARD, BASE, FUTEX, RUN, Stack, c10d, frame, user
from support.verdicts import causes

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis

CHANGES = {"same_functions_since": NOW - 2.0}
BARRIER = c10d("barrier")
WITH = "with state.main_process_first():"


def working(within: str = "", beside: str = "") -> Stack:
    """A main thread at work in a function of its own, and around the call of that these blocks."""
    caller = frame("main", "train.py", 80)
    told = replace(
        caller,
        within=((70, within),) if within else (),
        beside=((71, beside),) if beside else (),
    )
    return (frame("tokenize", "train.py", 12), told, *BASE[1:])


def first(name: str, within: str = "") -> Stack:
    """Who waits in a function of that name."""
    lets = replace(frame(name, "train.py", 23), within=((22, within),) if within else ())
    return (*c10d("barrier")[:2], lets, frame("__enter__", "py:contextlib.py", 137), *BASE)


def said(works: Stack, waits: Stack, number: int = 0, printed: bool = True) -> Diagnosis:
    """What is told where rank ``number`` works and two others have waited for 20 s."""
    world = World()
    for rank in range(3):
        if rank != number:
            world.add(waits, FUTEX, rank=rank, moved_at=NOW - 20.0)
    signs = {"printed_at": NOW - 9} if printed else {}
    world.add(works, RUN, rank=number, sample=CHANGES, **signs)
    found = judged(world)
    assert (found.state, len(found.verdicts)) == ("progressing", 1)
    assert [one.rank for one in found.verdicts[0].culprits] == [number]
    return found


@pytest.mark.parametrize(
    ("works", "waits", "told"),
    [
        (working("if rank == 0:"), BARRIER, "under `if rank == 0:` (train.py:70)"),
        (working("if rank == 0 and not path.exists():"), c10d("broadcast_object_list"), "under `"),
        (working('if int(os.environ.get("RANK", "0")) == 0:'), BARRIER, "under `"),
        (working("if not dist.get_rank():"), BARRIER, "under `"),
        (working("if accelerator.is_main_process:"), BARRIER, "under `"),
        (working("if main:  # main = rank == 0"), BARRIER, "under `if main:` with `main = rank"),
        (working("else: if rank != 0:"), BARRIER, "under the `else` of `if rank != 0:`"),
        (working("past: if not self.is_main: return"), BARRIER, "past `if not self.is_main: "),
        (working("@rank_zero_only"), BARRIER, "under `@rank_zero_only`"),
        (working(beside=WITH), BARRIER, f"in `{WITH}` (train.py:71)"),
        (working(), first("torch_distributed_zero_first"),
         "as ranks 1-2 wait in torch_distributed_zero_first (train.py:23)"),
        (working(), first("enter", "if rank > 0:"),
         "as ranks 1-2 wait under `if rank > 0:` (train.py:22)"),
    ],
)  # fmt: skip
def test_what_one_rank_is_to_do_alone_is_a_long_phase(
    works: Stack, waits: Stack, told: str
) -> None:
    found = said(works, waits)
    assert causes(found) == ["long-phase"]
    summary = found.verdicts[0].summary
    assert f"is slow, not stuck, at what it is to do alone, {told}" in summary
    assert "it is busy at train.py:12 (tokenize), and gets on" in summary


@pytest.mark.parametrize(
    ("works", "waits", "number"),
    [
        (working(), BARRIER, 0),
        # Others wait in a part of a step; it is not the main rank; it is one of those that go on.
        (working("if rank == 0:"), BACKWARD, 0),
        (working("if rank == 0:"), c10d("all_reduce"), 0),
        (working("if rank == 2 and step == 0:"), BARRIER, 2),
        (working("if rank != 0:"), BARRIER, 1),
        (working("if remaining and rank == 2:"), BARRIER, 2),
        (working("past: if rank == 0: return"), BARRIER, 1),
        (working("if not main:  # main = rank == 0"), BARRIER, 1),
        (working(beside=WITH), BARRIER, 1),
        (working(), first("main_process_first"), 1),
        # They wait in that, too.
        (working("if is_main:"), (*BARRIER[:3], *working("if is_main:")[1:]), 0),
    ],
)
def test_any_other_slow_rank_is_a_straggler(works: Stack, waits: Stack, number: int) -> None:
    assert causes(said(works, waits, number)) == ["straggler"]


def test_one_of_which_does_not_show_whether_it_gets_on_is_observed_on() -> None:
    found = said(working("if rank == 0:"), BARRIER, printed=False)
    assert causes(found) == ["long-phase"]
    assert "most likely slow, not stuck, at what it is" in found.verdicts[0].summary
    assert not decided(found, 5.0)


def test_native_code_of_a_rank_that_is_alone_by_design() -> None:
    world = World(observed_since=NOW - 60.0)
    fits = replace(user("fit", 27)[0], within=((26, "if rank == 0:"),))
    world.add((fits, *BASE), RUN, main_cpu_share=0.9)
    world.waiters(2, BARRIER)
    found = judged(world)
    assert (found.state, causes(found)) == ("unknown", ["long-phase"])
    assert "at what it is to do alone, under `if rank == 0:`" in found.verdicts[0].summary
    assert "how far that is does not show" in found.verdicts[0].summary
