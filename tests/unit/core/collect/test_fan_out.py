"""Stacks and recorders that are asked for, of a node that gives none."""

from __future__ import annotations

import json
import sys

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.errors import ReadOnlyError
from hangtop_core.session.session import Options, Session, Update
from support.pieces import piece, process
from support.processes import PATIENCE

SILENT = """
import json, sys, time
def say(message):
    sys.stdout.write('\\x1eHT1 ' + json.dumps(message) + '\\n'); sys.stdout.flush()
say({'id': 0, 'hello': {'protocol': 1, 'clock': time.time()}})
for line in sys.stdin:
    message = json.loads(line.partition(' ')[2])
    if message['op'] == 'ping':
        say({'id': message['id'], 'end': {}})
    elif message['op'] == 'watch':
        say({'id': message['id'], 'seq': 0, 'data': json.loads(sys.argv[1])})
    elif message['op'] == 'stacks' and message['deadline'] < 1:
        say({'id': message['id'], 'err': {'kind': 'timeout', 'text': 'nobody answered'}})
"""


class Silent(LocalLauncher):
    """A node with one rank, whose stacks never come."""

    def argv(self) -> list[str]:
        server = [101, 5, 2, 3, 4, None, None]
        rank = process(100, 0)
        rank["threads"].append(server)
        first = json.dumps(piece(0.0, rank, whole=True))
        return [sys.executable, "-Ic", SILENT, first]


def test_a_rank_that_gave_no_stack_tells_why() -> None:
    with Session(Options(interval=0.1), diagnose, [Silent("n1")]) as session:
        assert session.wait(lambda update: bool(update.snapshot.jobs), PATIENCE)
        [answer] = session.sample({"n1": [100]}, deadline=0.5).result(PATIENCE)
        failure = answer.sample.failure
        assert failure is not None
        assert "nobody answered" in failure.text

        def told(update: Update) -> bool:
            sample = update.snapshot.jobs[0].ranks[0].sample
            return sample is not None and sample.failure == failure

        assert session.wait(told, PATIENCE)


@pytest.mark.parametrize("readonly", [False, True])
def test_only_a_session_that_may_touch_ranks_asks_their_recorders(readonly: bool) -> None:
    with Session(Options(interval=0.1, readonly=readonly), diagnose, [Silent("n1")]) as session:
        # Stacks and recorders are asked for in one round, one after the other.
        last = "py-spy" if readonly else "ask the flight recorder"
        assert session.wait(lambda _: any(last in one.what for one in session.commands), PATIENCE)
        if readonly:
            with pytest.raises(ReadOnlyError):
                session.sample({"n1": [100]}, mode="native").result(PATIENCE)
            update = session.latest
            assert update is not None
            [spot] = [
                s for d in update.diagnoses.values() for s in d.blind_spots if "flight" in s.what
            ]
            assert "was not asked" in spot.why
