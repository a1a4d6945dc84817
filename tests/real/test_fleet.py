"""Sixty-four nodes, of which some never say anything, one is slow and one comes and goes.

The nodes are those of `benchmarks/simulated`: what a real probe said, over real pipes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.connect.launcher import Wave
from hangtop_core.attach.connect.timing import Timing
from hangtop_core.session.session import Options, Session
from simulated.launcher import Fleet, FleetLauncher
from simulated.story import Story
from support.processes import PATIENCE

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Node
    from hangtop_core.model.updates import Update

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
DEAD, SLOW, FLAPPING, NODES = (0, 1, 2, 3), 4, 5, 64


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_others_feel_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are dead as may log in at a time, and they are first in the queue."""
    paths = [str(ROOT / folder) for folder in ("core", "tests", "benchmarks")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(FleetLauncher, "wave", Wave("four at a time", len(DEAD), 0.3))
    story = Story(
        nodes=NODES, ranks=2, dead=DEAD, slow=(SLOW,), slow_s=1.5, flapping=(FLAPPING,), flap_s=1.0
    )
    timing = Timing(ping=0.5, slow=0.5, hello=2 * PATIENCE)
    with (
        Fleet(story) as fleet,
        Session(Options(), diagnose, fleet.launchers(), timing) as session,
    ):
        seen: dict[str, set[str]] = {}
        ages: list[float] = []

        def take(update: Update) -> None:
            for node in update.snapshot.nodes:
                seen.setdefault(node.name, set()).add(node.state)
            well = the_others(update)
            if all(node.last_seen for node in well):
                ages.extend(update.snapshot.at - (node.last_seen or 0.0) for node in well)

        session.subscribe(take)
        done = session.wait(
            lambda u: (
                bool(ages)
                and flapped(u.snapshot.nodes, seen)
                and {node.state for node in the_others(u)} == {"ready"}
            ),
            PATIENCE,
        )
        assert done is not None, session.latest
        names = [story.name(number) for number in range(NODES)]
        assert all(seen[name] == {"connecting"} for name in names[: len(DEAD)])
        for name in names[FLAPPING + 1 :]:
            # A machine that has too much to do makes them late by half a second, too.
            assert seen[name] <= {"connecting", "ready", "slow"}, (name, seen[name])
        assert max(ages) < 10.0
        (job,) = done.snapshot.jobs
        there = {rank.node for rank in job.ranks}
        assert there >= set(names[FLAPPING + 1 :])


def the_others(update: Update) -> tuple[Node, ...]:
    """The nodes with which nothing is wrong."""
    return update.snapshot.nodes[FLAPPING + 1 :]


def flapped(nodes: tuple[Node, ...], seen: dict[str, set[str]]) -> bool:
    """Whether the one has come and gone, and the other was found to be slow."""
    return nodes[FLAPPING].generation >= 2 and "slow" in seen[nodes[SLOW].name]
