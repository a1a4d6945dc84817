"""The real head on a simulated cluster: what 128, 1,024 and 8,192 ranks cost it.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/fleet.py [NODES ...] [--seconds S]
    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/fleet.py 1024 --tui [--hang-at S]

Nodes of 8 ranks each are played by two processes over real pipes, with the real wire and what a
real probe said (`simulated/`); everything on this side is hangtop itself. Per size: seconds to the
first picture with all ranks, and CPU seconds of the head until then; seconds until every rank has a
stack; CPU seconds per second of the head while all rows change every second, while a tenth does,
and while the job hangs; those of the players while all rows change; bytes per node and second; MiB
of the head (without the children that stand for ssh); seconds from the hang to its verdict beyond
`hang_after`, and CPU seconds of the head in them. `--tui` opens the app on it. The players share
the machine's cores, so times are upper bounds; CPU seconds are not, they leave the players out.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop_core.attach.connect.apart import ApartEngine
from hangtop_core.attach.connect.engine import PipeEngine
from hangtop_core.session.session import Options, Session
from measures import memory, processor
from simulated.launcher import Fleet, launchers
from simulated.story import Story

if TYPE_CHECKING:
    from hangtop_core.model.updates import Update

SIZES = (16, 128, 1024)
HANG_AFTER_S = 10.0
PATIENCE_S = 300.0
"""Seconds to wait for what a phase begins with."""
REST_S = 15.0
"""Seconds after the verdict in which what it asks for still comes."""


class Counter:
    """Bytes that nodes have said, counted where the session hands them back to the engine."""

    def __init__(self) -> None:
        self.bytes = 0
        self._count(PipeEngine)
        self._count(ApartEngine)  # of many nodes

    def _count(self, kind: type[PipeEngine] | type[ApartEngine]) -> None:
        consumed = kind.consumed

        def counted(engine, conn: int, size: int) -> None:  # type: ignore[no-untyped-def]
            self.bytes += size
            consumed(engine, conn, size)

        kind.consumed = counted  # type: ignore[method-assign]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("nodes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--tui", action="store_true", help="open the app instead")
    parser.add_argument("--room", type=Path, help="with --tui: of a fleet that is played already")
    parser.add_argument("--hang-at", type=float, default=30.0,
                        help="with --tui; -1: only at SIGUSR1")  # fmt: skip
    parser.add_argument("--churn", type=float, default=1.0, help="with --tui: share of ranks")
    parser.add_argument("--slow", type=int, nargs="*", default=[], help="with --tui: these nodes")
    parser.add_argument("--flapping", type=int, nargs="*", default=[], help="with --tui")
    parser.add_argument("--dead", type=int, nargs="*", default=[], help="with --tui")
    arguments = parser.parse_args()
    if arguments.tui:
        show(arguments)
        return
    counter = Counter()
    print("| ranks | first picture s | head CPU s | all stacks s | all rows CPU/s | a tenth CPU/s "
          "| hung CPU/s | players CPU/s | B/node/s training | hung | MiB | verdict after s "
          "| head CPU s |")  # fmt: skip
    print("|---:" * 13 + "|")
    for nodes in arguments.nodes:
        print(row(nodes, arguments.seconds, counter), flush=True)


def show(arguments: argparse.Namespace) -> None:
    """The app on a simulated cluster."""
    from hangtop.app import begin, diagnose, run_app

    story = Story(
        nodes=(arguments.nodes or [128])[0],
        hang_at=arguments.hang_at,
        churn=arguments.churn,
        slow=tuple(arguments.slow),
        flapping=tuple(arguments.flapping),
        dead=tuple(arguments.dead),
    )
    begin()
    if arguments.room is not None:
        with Session(options(), diagnose, launchers(arguments.room, story)) as session:
            run_app(session)
        return
    with Fleet(story) as fleet, Session(options(), diagnose, fleet.launchers()) as session:
        signal.signal(signal.SIGUSR1, lambda *_: fleet.tell("hang"))
        run_app(session)


def options() -> Options:
    """As the app starts a session."""
    return Options(hang_after=HANG_AFTER_S, sample_early=1.0)


def row(nodes: int, seconds: float, counter: Counter) -> str:
    """Measure one size; a line of the table."""
    told = phases(nodes, seconds, counter)
    cells = [
        f"{nodes * 8:,}",
        f"{told['first']:.1f}",
        f"{told['first_cpu']:.2f}",
        f"{told['stacks']:.1f}",
        f"{told['all']:.3f}",
        f"{told['tenth']:.3f}",
        f"{told['hung']:.3f}",
        f"{told['players']:.2f}",
        f"{told['bytes']:.0f}",
        f"{told['hung_bytes']:.0f}",
        f"{told['memory']:.0f}",
        f"{told['verdict']:.1f}",
        f"{told['verdict_cpu']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def phases(nodes: int, seconds: float, counter: Counter) -> dict[str, float]:
    """Attach, watch a job train, see it hang; each begins when the one before is over."""
    from hangtop_core.analysis.verdict.engine import diagnose  # the app loads it later

    out: dict[str, float] = {}
    story = Story(nodes=nodes, hang_at=-1.0)
    with Fleet(story) as fleet:
        began, spent = time.monotonic(), time.process_time()
        with Session(options(), diagnose, fleet.launchers()) as session:
            wait(session, lambda update: len(ranks(update)) == story.world)
            out["first"] = time.monotonic() - began
            out["first_cpu"] = time.process_time() - spent
            wait(session, lambda update: all(rank.sample for rank in ranks(update)))
            out["stacks"] = time.monotonic() - began
            played = processor(fleet.pids())
            out["all"], out["bytes"] = watch(seconds, nodes, counter)
            out["players"] = (processor(fleet.pids()) - played) / seconds
            fleet.tell("churn 0.1")
            time.sleep(2.0)
            out["tenth"], _ = watch(seconds, nodes, counter)
            fleet.tell("hang")
            time.sleep(HANG_AFTER_S)
            began, spent = time.monotonic(), time.process_time()
            wait(session, is_blamed)
            out["verdict"] = time.monotonic() - began
            out["verdict_cpu"] = time.process_time() - spent
            time.sleep(REST_S)
            out["hung"], out["hung_bytes"] = watch(seconds, nodes, counter)
            out["memory"] = memory()
    return out


def ranks(update: Update) -> tuple:  # type: ignore[type-arg]
    """Ranks of the one job."""
    return update.snapshot.jobs[0].ranks if update.snapshot.jobs else ()


def is_blamed(update: Update) -> bool:
    """Whether the guilty rank, and nobody else, is named for a hang."""
    for one in update.diagnoses.values():
        if one.state == "hung" and one.verdicts:
            return [culprit.rank for culprit in one.verdicts[0].culprits] == [Story().culprit]
    return False


def wait(session: Session, holds) -> None:  # type: ignore[no-untyped-def]
    """Wait for an update of which something holds."""
    if session.wait(holds, PATIENCE_S) is None:
        sys.exit("the fleet was not seen as it should be")


def watch(seconds: float, nodes: int, counter: Counter) -> tuple[float, float]:
    """CPU seconds per second of this process; bytes per node and second."""
    began, cpu, before = time.monotonic(), time.process_time(), counter.bytes
    time.sleep(seconds)
    took = time.monotonic() - began
    return (time.process_time() - cpu) / took, (counter.bytes - before) / nodes / took


if __name__ == "__main__":
    main()
