"""Makes the pictures in this directory: starts jobs that really hang, opens the real app on them,
presses keys and saves what is on the screen, as SVG and as text. `make screenshots` runs this.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hangtop.app import TEXTUAL_SETTINGS
from hangtop.demo.gallery import BY_NAME
from hangtop.demo.runner import Demo
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session import Options, Session

HERE = Path(__file__).parent
HANG_AFTER = 8.0
SIZE = (120, 36)


class Shot(NamedTuple):
    """One picture: which job, what it is called, and the keys that lead to it."""

    scenario: str
    name: str
    keys: tuple[str, ...] = ()


SHOTS = (
    Shot("skip", "overview"),
    Shot("skip", "stacks", ("2",)),
    Shot("skip", "verdict", ("5",)),
    Shot("recorder", "recorder", ("4",)),
    Shot("dataloader-worker", "dataloader-worker"),
    Shot("dataloader-worker", "rank", ("3",)),
    Shot("stopped", "stopped", ("5",)),
    Shot("lock", "lock", ("3",)),
)


async def take(session: Session, shot: Shot) -> None:
    """Open the app on a running session, press the keys, save the screen."""
    from hangtop.application import HangtopApp  # Textual reads its settings when it is imported

    app = HangtopApp(session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(1.5)
        await pilot.press(*shot.keys)
        await pilot.pause(2.5)  # what a page asks of the node comes in
        (HERE / f"{shot.name}.svg").write_text(app.export_screenshot(title="hangtop"))
        strips = app.screen._compositor.render_strips()
        lines = [strip.text.rstrip() for strip in strips]
        (HERE / f"{shot.name}.txt").write_text("\n".join(lines) + "\n")


def take_all(scenario: str) -> bool:
    """Take all pictures of one scenario; whether its hang was explained as it should be."""
    with Demo(BY_NAME[scenario]) as demo:
        demo.wait_until_hung()
        options = Options(hang_after=HANG_AFTER, pids=demo.members)
        with Session(options, diagnose) as session:
            found = session.wait(
                lambda update: any(
                    one.verdicts and one.state == "hung" for one in update.diagnoses.values()
                ),
                timeout=60.0,
            )
            if found is None:
                return False
            session.wait(lambda update: update.snapshot.at > found.snapshot.at + 5.0, timeout=10.0)
            for shot in SHOTS:
                if shot.scenario == scenario:
                    asyncio.run(take(session, shot))
                    print(f"screenshots/{shot.name}.svg")
    return True


def take_logs() -> None:
    """Take the picture of logs, of a job whose rank 2 has caught an error."""
    with TemporaryDirectory() as root:
        shutil.copy(HERE / "train.py", root)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
        command += ["--master-port=29719", "--redirects=3", "--log-dir=logs", "train.py"]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, cwd=root, stdout=quiet, stderr=quiet) as job:
            try:
                options = Options(hang_after=HANG_AFTER, pids=(job.pid,))
                with Session(options, diagnose) as session:
                    session.wait(
                        lambda update: any(
                            one.state == "hung" for one in update.diagnoses.values()
                        ),
                        timeout=60.0,
                    )
                    asyncio.run(take(session, Shot("", "logs", ("8",))))
            finally:
                job.terminate()
    print("screenshots/logs.svg")


def take_nodes() -> None:
    """Take the picture of nodes, of which one is lost; root only, see tests/support/cluster.py."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support.cluster import why_not
    from support.record import half_lost_cluster

    reason = why_not()
    if reason is not None:
        print(f"nodes: no picture made: {reason}", file=sys.stderr)
        return
    with TemporaryDirectory() as root, half_lost_cluster(Path(root)) as session:
        asyncio.run(take(session, Shot("", "nodes", ("9",))))
    print("screenshots/nodes.svg")


def main() -> int:
    """Make all pictures, or those of the scenarios that are named; `nodes` and `logs` are some."""
    os.environ.update(TEXTUAL_SETTINGS)
    wanted = sys.argv[1:]
    if not wanted or "nodes" in wanted:
        take_nodes()
    if not wanted or "logs" in wanted:
        take_logs()
    scenarios = dict.fromkeys(shot.scenario for shot in SHOTS)
    chosen = [name for name in scenarios if not wanted or name in wanted]
    failed = [name for name in chosen if not take_all(name)]
    for name in failed:
        print(f"{name}: no verdict within 60 s, no picture made", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
