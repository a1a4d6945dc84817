"""What the head keeps of a job that is watched for days, and restarted again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.reports import LogPiece
from hangtop_core.collect.answers import Answers
from hangtop_core.judging.hangs import Hangs
from hangtop_core.judging.judging import Judge
from hangtop_core.model.updates import Update
from hangtop_core.state import outputs
from hangtop_core.state.stack_table import StackTable
from hangtop_core.state.store import Store
from support.pieces import EPOCH, child, launcher, meters, piece, process, stacks
from support.weight import weight

if TYPE_CHECKING:
    import pytest

STEP = 60.0
LIFE = 5
"""Steps after which torchrun starts all ranks anew."""
RANKS = 2


class Days:
    """A job on one node, as its probe and its watcher see it."""

    def __init__(self) -> None:
        self.store, self.hangs, self.judge = Store(), Hangs(), Judge(diagnose, 30.0)
        self.answers = Answers(self.store)
        self.steps = self.first = 0
        self.told: list[str] = []
        self.store.stacks = StackTable(max_stacks=10)
        self.store.add_node("n1", EPOCH)
        self.store.connected("n1", EPOCH, True, EPOCH)

    def step(self) -> None:
        """Live through a minute."""
        n, at = self.steps, self.steps * STEP
        if n % LIFE == 0:
            gone = [self.first + i for i in range(2 * RANKS)] if n else []
            self.first = 1000 + n * 10
            new = [launcher(99)] if not n else []
            for i in range(RANKS):
                new.append(process(self.first + i, i, outputs=["/logs/train.out"]))
                new.append(child(self.first + RANKS + i, self.first + i))
            raw = piece(at, *new, gone={str(pid): {} for pid in gone})
        else:
            ran = [
                {"pid": self.first + i, "meters": meters(cpu_s=float(n), main_last_ran_s=0.1)}
                for i in range(RANKS)
            ]
            raw = piece(at, *ran)
        self.store.fold_watch("n1", messages.decode(raw, messages.WatchPiece), self.told.append)
        for i in range(RANKS):
            taken = stacks(self.first + i, at, ("step", n), ("main", 1))
            self.answers.stacks("n1", messages.decode(taken, messages.StackPiece))
            said = {"pid": self.first + i, "path": "/logs/train.out", "inode": "8:1", "at": EPOCH}
            told = {**said, "size": 100 * n + 100, "start": 100 * n, "changed": EPOCH + at}
            text = f"step {n} of rank {i}: loss 0.1\n"
            log = messages.decode({**told, "text": text}, LogPiece)
            self.store.outputs.fold("n1", log, 0.0)
        snapshot = self.store.publish(EPOCH + at)
        self.hangs.fold(Update(snapshot, self.judge.judge(snapshot)))
        self.steps += 1

    def weigh(self) -> int:
        """Return what everything together holds."""
        return weight(self.store, self.hangs, self.judge)


def test_what_is_kept_does_not_grow_with_the_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "KEPT", 2000)
    monkeypatch.setattr(outputs, "PIDS", 20)
    days = Days()
    weights = []
    for _ in range(3):
        for _ in range(60 * LIFE):
            days.step()
        weights.append(days.weigh())
    assert not days.told
    assert weights[2] < 1.02 * weights[1], weights
