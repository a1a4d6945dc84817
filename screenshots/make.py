"""Makes the pictures in this directory: opens captures of jobs that really hung in the real app,
presses keys and saves what is on the screen, as SVG and as text. `make screenshots` runs this.

    python screenshots/make.py                     all pictures, from the captures there are
    python screenshots/make.py logs nodes          some of them
    python screenshots/make.py --record [NAME ...] record the captures anew first (`make captures`)

The captures are those of the tests, in tests/recordings. Most are shown as a live session shows
its newest picture; `capture` as `hangtop open` does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hangtop.app import TEXTUAL_SETTINGS

HERE = Path(__file__).parent
if TYPE_CHECKING:
    from hangtop.application import HangtopApp

SIZE = (120, 36)
SETTLE_S = 0.5


class Shot(NamedTuple):
    """One picture: of which capture, what it is called, and the keys that lead to it."""

    capture: str
    name: str
    keys: tuple[str, ...] = ()
    live: bool = True


SHOTS = (
    Shot("skip", "overview"),
    Shot("skip", "stacks", ("2",)),
    Shot("skip", "verdict", ("5",)),
    Shot("recorder", "recorder", ("4",)),
    Shot("dataloader-worker", "dataloader-worker"),
    Shot("dataloader-worker", "rank", ("3",)),
    Shot("stopped", "stopped", ("5",)),
    Shot("lock", "lock", ("3",)),
    Shot("nccl-skip", "gpus", ("6",)),
    Shot("logs", "logs", ("8",)),
    Shot("cluster", "nodes", ("9",)),
    Shot("cluster", "capture", ("left_square_bracket",) * 3, live=False),
)


async def draw(app: HangtopApp, shot: Shot) -> None:
    """Press the keys, save the screen."""
    from support.player import picture

    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(*shot.keys)
        text = ""
        while text != (text := picture(app)):
            await pilot.pause(SETTLE_S)
        (HERE / f"{shot.name}.svg").write_text(app.export_screenshot(title="hangtop"))
        (HERE / f"{shot.name}.txt").write_text(text)
    print(f"screenshots/{shot.name}.svg")


def main() -> int:
    """Make all pictures, or those that are named."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    os.environ.update(TEXTUAL_SETTINGS)  # Textual reads them when it is imported
    from support.player import app_for, app_on
    from support.record import capture, load

    parser = argparse.ArgumentParser(description="Make the pictures again.")
    parser.add_argument("names", nargs="*", help="of pictures; with --record of captures")
    parser.add_argument(
        "--record", action="store_true", help="record captures first (some as root)"
    )
    arguments = parser.parse_args()
    wanted = arguments.names
    if arguments.record:
        from support import recording  # needs torch, and for nodes root

        for name in wanted or recording.NAMES:
            path = recording.record(name)
            print(f"{path.relative_to(HERE.parent)}: {path.stat().st_size / 1024:.0f} KiB")
        wanted = [shot.name for shot in SHOTS if not wanted or shot.capture in wanted]
    for shot in SHOTS:
        if not wanted or shot.name in wanted:
            app = app_for(load(shot.capture)) if shot.live else app_on(capture(shot.capture))
            asyncio.run(draw(app, shot))
    return 0


if __name__ == "__main__":
    sys.exit(main())
