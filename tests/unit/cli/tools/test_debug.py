"""`hangtop debug` before there is a prompt: which picture it goes by."""

from __future__ import annotations

import errno
import os
from argparse import ArgumentTypeError
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hangtop.cli.arguments.arguments import rank
from hangtop.cli.tools.coretake import chosen
from hangtop.cli.tools.debug import has_sample, prompt
from hangtop.terminal import pager
from hangtop_core.collect.fan_out import Sampled
from hangtop_core.errors import NoJobError, UsageError
from hangtop_core.model.updates import Update
from hangtop_core.text.rank_sets import rank_key
from support.build import World
from support.situations import SLEEP, user

replace = msgspec.structs.replace


def test_a_picture_made_before_the_sample_came_is_not_gone_by() -> None:
    world = World()
    world.add(user("train", 3), SLEEP)
    rank = world.add(user("evaluate", 7), SLEEP)
    update, last = Update(world.snapshot(), {}), rank.sample
    assert last is not None

    def shows(sample: object) -> bool:
        return has_sample(update, Sampled(rank.node, rank.process.pid, sample))  # type: ignore[arg-type]

    assert shows(last)
    assert shows(replace(last, at=last.at - 1)), "one that was taken since is as good"
    assert shows(replace(last, at=last.at + 1)), "it says the same, and so is no news"
    assert not shows(replace(last, at=last.at + 1, threads=()))


def test_the_rank_that_is_meant_is_one_and_runs() -> None:
    world = World()
    first, other = (world.add(user("train", 3), SLEEP, node=name) for name in ("n1", "n2"))
    left = world.add(user("train", 3), SLEEP, state="exited")
    assert first.process.pid != other.process.pid
    here = replace(other, process=replace(other.process, pid=first.process.pid))
    job = replace(world.snapshot().jobs[0], ranks=(first, here, left))
    assert chosen(job, here.rank, []) is here
    with pytest.raises(UsageError, match=r"more than one rank with pid.*\(n1, .*\(n2, "):
        chosen(job, None, [first.process.pid])
    with pytest.raises(NoJobError, match="has exited"):
        chosen(job, left.rank, [])
    with pytest.raises(NoJobError, match="there is no rank 99"):
        chosen(job, 99, [])
    nameless = replace(other, rank=rank_key("n2", 4711))
    job = replace(job, ranks=(first, nameless))
    assert chosen(job, rank("pid4711"), []) is nameless
    with pytest.raises(NoJobError, match=r"there is no rank \? \(pid 4712\)"):
        chosen(job, rank("pid4712"), [])
    with pytest.raises(ArgumentTypeError, match="'1-2' is not a rank"):
        rank("1-2")


def test_a_prompt_that_cannot_be_started_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(command: list[str]) -> int:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(pager, "status", start)
    plan: Any = SimpleNamespace(argv=["ssh", "n1"], shown="ssh n1")
    assert prompt(plan) == 1
    assert capsys.readouterr().err.splitlines()[1] == "hangtop: ssh: No such file or directory"
