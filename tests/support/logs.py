"""Reads and judges log texts for tests, as the command does with files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.wire.reports import LogPiece
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.parsing.parse import Parser
from hangtop_core.logs.reading.names import places
from hangtop_core.state.outputs import Outputs
from support.record import load

if TYPE_CHECKING:
    from hangtop_core.logs.judging.judged import Judged
    from hangtop_core.model.file_log import FileLog
    from hangtop_core.model.updates import Update

replace = msgspec.structs.replace

RECORDINGS = Path(__file__).parents[1] / "recordings" / "logs"
PATH = "/data/train/train.out"
NEAR = 1795262400.0
"""2026-11-21 12:00 UTC, some time after the recorded jobs."""


def parsed(text: str, path: str = "train.out", number: int = 0, piece: int = 0) -> FileLog:
    """What the parser makes of a text, given whole or in pieces."""
    parser = Parser(number, NEAR)
    for start in range(0, len(text), piece or max(len(text), 1)):
        parser.feed(text[start : start + (piece or len(text))])
    parser.finish()
    return parser.log(path, places([path])[path], len(text), NEAR)


def judged(*texts: str, paths: tuple[str, ...] = ()) -> Judged:
    """What is concluded of the texts of one job's logs."""
    named = paths or tuple(f"log{number}.out" for number in range(len(texts)))
    return judge([parsed(text, named[number], number) for number, text in enumerate(texts)])


def recording(name: str) -> str:
    """What a real job has printed, as recorded."""
    with (RECORDINGS / f"{name}.out").open(newline="") as file:
        return file.read()


def with_log(text: str) -> Update:
    """A recorded job of which all ranks print to one file: this is the end of it."""
    update = load("skip")
    snapshot = update.snapshot
    (job,) = snapshot.jobs
    ranks = tuple(
        replace(rank, process=replace(rank.process, outputs=(PATH, PATH))) for rank in job.ranks
    )
    # What the recorded log says was printed just before.
    text = text.replace("2026-11-21 11:17:", "2026-11-21 11:57:")
    outputs = Outputs()
    for number, rank in enumerate(job.ranks):
        piece = LogPiece(NEAR, PATH, rank.process.pid, 1, "1:2", len(text), NEAR - 20.0)
        outputs.fold(rank.node, replace(piece, text=None if number else text), 0.0)
    job = replace(job, ranks=ranks)
    snapshot = replace(snapshot, jobs=(job,), outputs=outputs.read())
    return replace(update, snapshot=snapshot, diagnoses={job.key: diagnose(snapshot, job)})
