"""Runs the jobs of the table, has each diagnosed by the real command, and tells how it did.

python tests/accuracy/run.py [--together N] [--write FILE] [--captures FOLDER] [JOB...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "core"), str(ROOT / "tui")]

from accuracy import nodes  # noqa: E402
from accuracy.places import INSIDE, OUTSIDE, Place  # noqa: E402
from accuracy.report import calibration, document, summary, table  # noqa: E402
from accuracy.table import JOBS  # noqa: E402
from hangtop_core.diagnosis import MAKES_PROGRESS  # noqa: E402
from support.launch import Started, free_port  # noqa: E402
from support.places import NoPlaceError  # noqa: E402
from support.processes import environment, wait_until  # noqa: E402

if TYPE_CHECKING:
    from accuracy.job import Job

HANG_AFTER_S = 12
"""Without progress for so long a job that hangs is called hung here, which saves time. Jobs that
do not hang are told with what hangtop takes by itself: that is what tells them from hung."""
READY_S = 180.0
DIAGNOSE_S = 150.0
INTO_THE_HANG_S = 2.0
"""From the line of output that announces a hang until hangtop is started."""

WATCHED_S = 12.0
"""How long hangtop watches a job before that ends."""

SILENT_S = 20.0
"""The same for a job that prints nothing: torch has to be imported."""


@dataclass(frozen=True)
class Outcome:
    """What was said of one job."""

    job: Job
    cause: str | None
    """Of the first verdict, in a job called hung; None where it is not called hung."""
    culprits: tuple[int, ...] = ()
    confidence: float = 0.0
    told: str = ""
    error: str = ""
    """Why there is nothing to judge: it did not start, or hangtop gave no answer."""
    took_s: float = 0.0
    skipped: bool = False
    """It cannot be made on this machine."""

    @property
    def cause_right(self) -> bool:
        """The first verdict names the expected cause, or rightly no hang."""
        allowed = self.job.cause.split("|") if self.job.cause else [None]
        return not self.error and self.cause in allowed

    @property
    def right(self) -> bool:
        """Cause and culprits."""
        blamed = not self.job.culprits or self.culprits == self.job.culprits
        return self.cause_right and (self.job.cause is None or blamed)


def command(job: Job, port: int, here: Path, place: Place) -> list[str]:
    """How the job is started."""
    script, *arguments = job.command.split()
    program = [str(HERE / "jobs" / script), *arguments]
    python = sys.executable
    nodes, _, per_node = job.ranks.rpartition(":")
    argv = {
        "torchrun": [
            *(python, "-m", "torch.distributed.run", f"--nnodes={nodes or 1}"),
            *(f"--nproc-per-node={per_node}", "--master-addr=127.0.0.1", f"--master-port={port}"),
            *(
                ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=accuracy")
                if nodes
                else ()
            ),
            *program,
        ],
        "each": [python, str(HERE / "jobs" / "each.py"), *job.ranks.split(), *program],
        "spawn": [python, *program],
        "mpirun": [
            *("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", job.ranks),
            *("--mca", "btl_vader_single_copy_mechanism", "none", python, *program),
        ],
    }[job.form]
    if job.recorded:
        folder = str(here / "run")
        argv = [python, "-m", "hangtop", "run", "--no-logs", "--dir", folder, "--", *argv]
    return [*place.prefix, *argv]


def pids_of(job: Job, started: Started) -> list[int]:
    """Processes by which hangtop finds the job: its launcher, or without one its ranks."""
    launched = started.process.poll() is None
    if launched and job.form != "each" and not job.recorded:
        return [started.pid]
    return [pid for pid in started.pids() if "RANK" in environment(pid)]


def attempt(job: Job, captures: Path | None = None) -> Outcome:
    """Run one job, diagnose it, keep what that was concluded from, end it; never raises."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="hangtop-accuracy-") as folder:
            outcome = observe(job, Path(folder), captures)
    except NoPlaceError as error:
        return Outcome(job, None, error=str(error), skipped=True)
    except Exception:
        return Outcome(job, None, error=traceback.format_exc(limit=-2).strip())
    return Outcome(**{**outcome.__dict__, "took_s": time.monotonic() - began})


def observe(job: Job, here: Path, captures: Path | None) -> Outcome:
    """Start a job, wait until it is on its way into the hang, ask hangtop."""
    if job.form == "nodes":
        return observe_nodes(job, here, captures)
    port = free_port()
    log = here / "log.txt"
    with ExitStack() as stack:
        place = stack.enter_context(INSIDE[job.inside](here, port)) if job.inside else Place({})
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OUT_DIR": str(here),
            "PYTHONUNBUFFERED": "1",
            "HANGTOP_DIR": str(here),
            **place.environment,
            **job.environment,
        }
        output = Path(env.get("OUTPUT", log))
        started = stack.enter_context(
            Started(*command(job, port, here, place), env=env, output=output)
        )
        stack.callback(place.release)

        def ready() -> bool:
            text = log.read_text(errors="replace") if log.exists() else ""
            return bool(re.search(job.ready, text)) or started.process.poll() is not None

        if not wait_until(ready, READY_S) or started.process.poll() is not None:
            return Outcome(job, None, error=f"not ready: {log.read_text()[-2000:]}")
        if job.outside:
            _from_outside(job, started, env.get("PLACE", ""), stack)
        time.sleep(_with_load(INTO_THE_HANG_S if job.ready else SILENT_S))
        if job.watched:
            Timer(WATCHED_S, (here / "gate").touch).start()
        targets = ["--pid", *map(str, pids_of(job, started))]
        return ask(job, targets, captures)


def observe_nodes(job: Job, here: Path, captures: Path | None) -> Outcome:
    """The same for a job over two nodes."""
    log = here / "log.txt"
    with nodes.pair(here) as pair, ExitStack() as stack:
        if job.inside:
            nodes.BEFORE[job.inside](pair)
        started = [stack.enter_context(one) for one in nodes.start(job, pair, log)]

        def ready() -> bool:
            return len(re.findall(job.ready, log.read_text(errors="replace"))) >= job.times

        if not wait_until(ready, READY_S):
            return Outcome(job, None, error=f"not ready: {log.read_text()[-2000:]}")
        if job.outside:
            nodes.AFTER[job.outside](pair)
        time.sleep(_with_load(INTO_THE_HANG_S))
        if all(one.process.poll() is not None for one in started):
            return Outcome(job, None, error=f"ended: {log.read_text()[-2000:]}")
        return ask(job, pair.targets, captures, pair.cluster.path)


def _with_load(seconds: float) -> float:
    """As long as that takes where others want the processors, too; twenty seconds more at most."""
    queue = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(seconds * max(1.0, queue), seconds + 20.0)


def _from_outside(job: Job, started: Started, place: str, stack: ExitStack) -> None:
    culprit = str(job.culprits[0] if job.culprits else 0)
    names = ("RANK", "OMPI_COMM_WORLD_RANK")
    pids = [p for p in started.pids() if culprit in {environment(p).get(n) for n in names}]
    helper = OUTSIDE[job.outside](min(pids), place)
    if helper is not None:
        stack.callback(os.kill, helper, 9)


def ask(
    job: Job, targets: list[str], captures: Path | None, programs: str = os.environ["PATH"]
) -> Outcome:
    """Run `hangtop diagnose --json` for the job there, with the programs of that PATH."""
    argv = ["diagnose", "--json", *targets]
    argv += [] if job.slow or job.cause is None else ["--hang-after", str(HANG_AFTER_S)]
    argv += ["--observe", str(2 * WATCHED_S)] if job.watched else []
    argv += ["-o", str(captures / f"{job.name}.hangtop")] if captures is not None else []
    path = os.pathsep.join([str(ROOT / "core"), str(ROOT / "tui")])
    done = subprocess.run(
        [sys.executable, "-m", "hangtop", *argv],
        capture_output=True,
        text=True,
        timeout=DIAGNOSE_S,
        check=False,
        env={**os.environ, "PATH": programs, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
    )
    if not done.stdout:
        return Outcome(job, None, error=f"exit {done.returncode}: {done.stderr[-2000:]}")
    diagnosis: dict[str, Any] = json.loads(done.stdout)
    verdicts = diagnosis["verdicts"]
    states = {"hung", *(["exited"] if job.watched else ()), *(MAKES_PROGRESS if job.slow else ())}
    hung = diagnosis["state"] in states
    first = verdicts[0] if verdicts else {"cause": "none", "culprits": [], "confidence": 0.0}
    lines = [f"{v['confidence']:.2f} {v['cause']}: {v['summary']}" for v in verdicts]
    lines += [f"    {fact['text']}" for fact in first.get("evidence", ())]
    return Outcome(
        job,
        first["cause"] if hung else None,
        tuple(sorted({one["rank"] for one in first["culprits"]} - {None})),
        first["confidence"],
        "\n".join([f"state {diagnosis['state']}", *lines]),
    )


def main() -> int:
    """Run all jobs, or those named; 1 when fewer than 95 % were right or one falsely hung."""
    parser = argparse.ArgumentParser(description="how often hangtop is right")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="only these")
    parser.add_argument("--together", type=int, default=3, help="jobs at a time")
    parser.add_argument("--write", type=Path, help="keep the result in this file")
    parser.add_argument(
        "--captures", type=Path, metavar="FOLDER", help="keep a capture of each job there"
    )
    options = parser.parse_args()
    if options.captures is not None:
        options.captures.mkdir(parents=True, exist_ok=True)
    known = {job.name for job in JOBS}
    if wrong := set(options.jobs) - known:
        parser.error(f"no such job: {', '.join(sorted(wrong))}")
    jobs = [job for job in JOBS if not options.jobs or job.name in options.jobs]
    # What the kernel kills for memory in one job would be counted against the others.
    alone = [job for job in jobs if job.inside == "limited"]
    outcomes = []
    for some, together in (([j for j in jobs if j not in alone], options.together), (alone, 1)):
        with ThreadPoolExecutor(together) as pool:
            for outcome in pool.map(partial(attempt, captures=options.captures), some):
                outcomes.append(outcome)
                _tell(outcome)
    print()
    print(table(outcomes), calibration(outcomes), summary(outcomes), sep="\n")
    if options.write:
        options.write.write_text(document(outcomes))
    judged = [outcome for outcome in outcomes if not outcome.skipped]
    alarms = [one for one in judged if one.job.cause is None and not one.right]
    return int(bool(alarms) or sum(one.right for one in judged) < 0.95 * len(judged))


def _tell(outcome: Outcome) -> None:
    verdict = "skipped" if outcome.skipped else "right" if outcome.right else "WRONG"
    job = outcome.job
    given = "not started" if outcome.error else f"{outcome.cause} {list(outcome.culprits)}"
    print(f"{verdict:8}{job.name:24}{outcome.took_s:5.0f} s  {given}", flush=True)
    if verdict != "right":
        print(f"    expected {job.cause} {list(job.culprits)}")
        print("    " + (outcome.error or outcome.told).replace("\n", "\n    "), flush=True)


if __name__ == "__main__":
    sys.exit(main())
