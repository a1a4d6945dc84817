"""Colour and the rules of waiting in the headless commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop.cli import output
from hangtop.cli.diagnose import exit_status
from hangtop_core.diagnosis import Diagnosis, JobState, Verdict
from hangtop_core.numerics import Numerics
from hangtop_core.observing import decided, lacks_answers
from hangtop_core.updates import Update
from hangtop_hook.numericsfile import VARIABLE
from support.build import SLEEP, World, user

if TYPE_CHECKING:
    from hangtop_core.model import NodeState, Rank

TEXT = """HUNG for 31 s: 4 of 4 ranks seen on vm

Verdict: lock-wait   confidence 0.90 (high)
  rank 1 waits
  Evidence
    stacks      rank 1: in a lock
"""


class Terminal:
    """A stdout that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def diagnosis(state: JobState, *, verdicts: int = 0, stalled: float | None = None) -> Diagnosis:
    verdict = Verdict("lock-wait", 0.9, (), (), "", (), ())
    return Diagnosis(
        "hangtop.diagnosis/1", "0", "", 5.0, state, None, None, None, (verdict,) * verdicts,
        stalled_for_s=stalled,
    )  # fmt: skip


def test_no_colour_into_a_pipe() -> None:
    assert output.coloured(TEXT) == TEXT


def test_colour_on_a_terminal_changes_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = output.coloured(TEXT)
    assert shown.startswith("\x1b[1;31mHUNG for 31 s\x1b[0m: 4 of 4 ranks")
    assert "\x1b[1m  Evidence\x1b[0m\n" in shown
    plain = shown.replace("\x1b[0m", "").replace("\x1b[1;31m", "").replace("\x1b[1m", "")
    assert plain == TEXT


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    assert output.coloured(TEXT) == TEXT


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (diagnosis("hung", verdicts=1), 10),
        (diagnosis("hung"), 11),
        (diagnosis("progressing"), 0),
        (diagnosis("starting"), 0),
        (diagnosis("unknown", verdicts=1), 13),
    ],
    ids=lambda value: value.state if isinstance(value, Diagnosis) else str(value),
)
def test_exit_status(found: Diagnosis, status: int) -> None:
    assert exit_status(found) == status


def test_observing_goes_on_while_nothing_is_decided() -> None:
    assert decided(diagnosis("progressing"), 5.0)
    assert decided(diagnosis("hung", verdicts=1), 5.0)
    assert not decided(diagnosis("hung"), 4.0)  # evidence may still come
    assert not decided(diagnosis("unknown", stalled=20.0), 25.0)
    assert not decided(diagnosis("starting", stalled=1.0), 5.0)
    assert not decided(diagnosis("starting", stalled=12.0), 12.0)  # a rendezvous that lasts
    assert decided(diagnosis("starting", stalled=1.0), 11.0)


def test_ranks_that_may_still_give_a_first_stack_are_waited_for() -> None:
    world = World()
    for _ in range(3):
        world.add(user("rest", 4), SLEEP)
    whole = world.snapshot()
    (job,) = whole.jobs
    late = replace(job.ranks[2], sample=None)

    def lacking(last: Rank, state: NodeState = "ready") -> bool:
        nodes = tuple(replace(node, state=state) for node in whole.nodes)
        now = replace(job, ranks=(*job.ranks[:2], last))
        return lacks_answers(job, Update(replace(whole, nodes=nodes, jobs=(now,)), {}, 0.0))

    assert lacking(late)
    assert not lacking(job.ranks[2])
    assert not lacking(late, "lost")
    assert not lacking(replace(late, state="zombie"))
    assert not lacking(replace(late, process=replace(late.process, denied="it belongs to root")))
    watched = replace(job.ranks[2], process=replace(job.ranks[2].process, env={VARIABLE: "1"}))
    assert lacking(watched), "it may tell of a nan"
    assert not lacking(replace(watched, numerics=Numerics(2, "n1", 7, "/run/rank2")))
