"""Judges every situation of the corpus again, and lists what differs from the answers kept.

python tests/replay/run.py            # `make replay`; 1 where an answer differs
python tests/replay/run.py --accept   # keep the answers of today's rules instead
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "core"), str(ROOT / "tui")]

from accuracy.table import JOBS  # noqa: E402
from hangtop_core.analysis.verdict.engine import diagnose  # noqa: E402
from replay.corpus import CORPUS, situations  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.capture import Capture

EXPECTED = CORPUS / "answers.json"
NO_VERDICT = "(none)"


class Answer(NamedTuple):
    """What is checked of a diagnosis."""

    state: str
    cause: str
    """Of the first verdict."""
    culprits: tuple[int | str, ...]
    """Ranks, and pids of those without a number."""

    def __str__(self) -> str:
        return f"{self.state} {self.cause} {list(self.culprits)}"


def answer(capture: Capture) -> Answer:
    """Judge the newest snapshot of a capture by the rules of today."""
    snapshot, header = capture.newest.snapshot, capture.header
    diagnosis = diagnose(snapshot, snapshot.job(header.job), header.hang_after)
    if not diagnosis.verdicts:
        return Answer(diagnosis.state, NO_VERDICT, ())
    verdict = diagnosis.verdicts[0]
    culprits = {c.rank if c.rank is not None else f"pid {c.pid}" for c in verdict.culprits}
    return Answer(diagnosis.state, verdict.cause, tuple(sorted(culprits, key=str)))


def answers_of(archive: Path) -> dict[str, Answer]:
    """Judge all situations of one archive."""
    return {situation.name: answer(situation.capture) for situation in situations(archive)}


def answers() -> dict[str, Answer]:
    """Judge the whole corpus, one archive in each process."""
    with ProcessPoolExecutor() as pool:
        parts = pool.map(answers_of, sorted(CORPUS.glob("*.tar.xz")))
        return {name: found for part in parts for name, found in part.items()}


def kept() -> dict[str, Answer]:
    """Return the answers that were kept, by the situation's name."""
    rows: dict[str, Any] = json.loads(EXPECTED.read_text())
    return {
        name: Answer(state, cause, tuple(culprits))
        for name, (state, cause, culprits) in rows.items()
    }


def table(expected: Mapping[str, Answer], given: Mapping[str, Answer]) -> str:
    """Agreement by cause: in state, cause and culprits."""
    count: Counter[str] = Counter(one.cause for one in expected.values())
    same: Counter[str] = Counter(
        one.cause for name, one in expected.items() if given.get(name) == one
    )
    rows = [f"{cause:32}{same[cause]:6} of {count[cause]}" for cause in sorted(count)]
    rows.append(f"{'all':32}{sum(same.values()):6} of {sum(count.values())}")
    return "\n".join(rows)


def right_by_table(given: Mapping[str, Answer]) -> str:
    """How many accuracy jobs are judged as the table of jobs says."""
    jobs = {f"accuracy/{job.name}": job for job in JOBS}
    judged = [(job, given[name]) for name, job in jobs.items() if name in given]
    right = sum(
        one.cause in job.cause.split("|") and job.culprits in ((), one.culprits)
        for job, one in judged
        if job.cause
    )
    hanging = sum(job.cause is not None for job, _ in judged)
    alarms = sum(job.cause is None and one.state == "hung" for job, one in judged)
    return (
        f"jobs of accuracy: {right} of {hanging} that hang or fail are right, and {alarms} of "
        f"{len(judged) - hanging} healthy ones are called hung"
    )


def main() -> int:
    """Judge, compare, list; returns the exit status."""
    parser = argparse.ArgumentParser(description="judge the situations that were kept again")
    parser.add_argument("--accept", action="store_true", help="keep today's answers")
    options = parser.parse_args()
    given = answers()
    if options.accept:
        EXPECTED.write_text(json.dumps(given, indent=0, sort_keys=True) + "\n")
    expected = kept()
    print(table(expected, given), right_by_table(given), sep="\n\n")
    different = [name for name, one in sorted(expected.items()) if given.get(name) != one]
    for name in different:
        print(f"{name}: {expected[name]}, now {given.get(name, 'gone')}")
    return int(bool(different) or expected.keys() != given.keys())


if __name__ == "__main__":
    sys.exit(main())
