"""Play a recording to the app in a real terminal, one update a second, as a live job gives them.

    python tests/support/play.py NAME [--still] [--ascii]

Between updates time goes on and the counters of ranks move; with `--still` nothing does.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

import msgspec

from hangtop.app import run_app
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.model.updates import Update
from support.player import Player
from support.record import load

replace = msgspec.structs.replace


class Here(Player):
    """A recording whose nodes are all this machine, when it comes to shells."""

    def shell(self, node: str) -> list[str]:
        return LocalLauncher(node).shell()


def moved(update: Update, seconds: float) -> Update:
    """The recording as it would be some seconds later, moved to the present."""
    offset = time.time() - update.snapshot.at
    jobs = tuple(
        replace(
            job,
            ranks=tuple(
                replace(
                    rank,
                    cpu_share=(seconds * 7 + rank.rank) % 3 / 100,
                    moved_at=None if rank.moved_at is None else rank.moved_at + offset - seconds,
                )
                for rank in job.ranks
            ),
        )
        for job in update.snapshot.jobs
    )
    diagnoses = {
        key: replace(one, hung_for_s=None if one.hung_for_s is None else one.hung_for_s + seconds)
        for key, one in update.diagnoses.items()
    }
    return Update(replace(update.snapshot, at=time.time(), jobs=jobs), diagnoses)


def main() -> None:
    """Play until the user leaves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--still", action="store_true")
    parser.add_argument("--ascii", action="store_true")
    options = parser.parse_args()
    update = load(options.name)
    player = Here(moved(update, 0.0))
    began = time.monotonic()

    def go_on() -> None:
        while True:
            time.sleep(1.0)
            player.play(moved(update, 0.0 if options.still else time.monotonic() - began))

    threading.Thread(target=go_on, daemon=True).start()
    sys.exit(run_app(player, ascii=options.ascii))


if __name__ == "__main__":
    main()
