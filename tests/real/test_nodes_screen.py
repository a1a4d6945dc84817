"""The screens on real nodes over ssh: one freezes under its job, is lost, and comes back."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from hangtop.application import HangtopApp
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.connect.link import Timing
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.session.session import Options, Session
from support.cluster import Cluster, why_not
from support.player import picture
from support.processes import PATIENCE
from support.remote_jobs import torchrun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
QUICK = Timing(ping=0.5, slow=0.7, lost=4.0)


async def shows(
    pilot: Pilot[None], *words: str, holds: Callable[[str], object] | None = None
) -> str:
    """Wait until all of it stands on the screen."""
    until = time.monotonic() + PATIENCE
    while True:
        text = picture(pilot.app)
        if all(word in text for word in words) and (holds is None or holds(text)):
            return text
        assert time.monotonic() < until, f"{words} do not stand on the screen:\n{text}"
        await pilot.pause(0.1)


async def test_a_node_freezes_is_lost_with_its_age_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(tmp_path / "c", 3) as cluster:
        monkeypatch.setenv("PATH", cluster.path)
        launchers = [SshLauncher(node.name, Login(connect_timeout=3)) for node in cluster.nodes]
        options = Options(sample_every=1.0)
        frozen = cluster.node(3)
        with (
            torchrun(cluster, {2: 1, 3: 1}, "steps"),
            Session(options, diagnose, launchers, QUICK) as session,
        ):
            states: list[str] = []
            session.subscribe(lambda u: states.append(u.snapshot.nodes[2].state))
            app = HangtopApp(session)
            async with app.run_test(size=(120, 36)) as pilot:
                steps = re.compile(r"node-[23] .*gloo_job\.py:\d+ steps")
                await shows(pilot, "3/3 nodes", holds=lambda text: len(steps.findall(text)) == 2)
                await pilot.press("9")
                await shows(pilot, "3 ready", "NODE  node-", "Python 3")
                late = re.compile("2 ready  1 (slow|lost)")
                frozen.freeze()
                try:
                    # A screen that is late may never have shown that it was slow before.
                    found = await shows(pilot, holds=late.search)
                    assert "1 slow" in found or "slow" in states
                    await shows(pilot, "2 ready  1 lost", "node-3 lost", "2/3 nodes")
                    # Its age, and its rank, which stays.
                    old = re.compile(r"node-3 lost +[\d:]+ s? +([2-9]|\d\d|\d+:\d\d)( s)? ago.* 1 ")
                    await shows(pilot, holds=old.search)
                    await pilot.press("1")
                    # On a slow machine there is a verdict by then, which stands there instead.
                    why = "(lost, seen|◀ node-unreachable)"
                    row = re.compile(rf"1 node-3 +\d+ lost [\d:]+ .*steps.*{why}")
                    await shows(pilot, holds=row.search)
                finally:
                    frozen.thaw()
                await pilot.press("9", "R")
                await shows(pilot, "3 ready", "3/3 nodes")
                await pilot.press("1")
                await shows(pilot, holds=lambda text: "lost" not in text.split("sort")[-1])
                assert session.shell("node-3") == ["ssh", "node-3"]
