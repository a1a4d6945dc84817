"""Ranks without a readable log, with reason and remedy. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.logs.reading.of_jobs import of_job
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.model.output import Output
    from hangtop_core.model.snapshot import Job, Process

_FIX = "torchrun --redirects 3 --log-dir DIR; or `... 2>&1 | tee train.log` behind the launcher"
_PIPE_FIX = f"{_FIX}; of a container: docker logs NAME 2>&1 | hangtop logs -"
_WHAT = (
    ("/dev/pts/", "prints to a terminal", _FIX),
    ("/dev/tty", "prints to a terminal", _FIX),
    ("/dev/null", "prints to /dev/null", "start it without > /dev/null"),
    ("pipe:", "prints into a pipe, and what reads it writes no file that was found", _PIPE_FIX),
    ("socket:", "prints to a socket, as under ssh or a scheduler", "srun --output 'log-%t.out'"),
)


class Lack(NamedTuple):
    """Ranks without a readable log, for one reason."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    why: str
    fix: str


def lacking(job: Job, outputs: Sequence[Output]) -> list[Lack]:
    """Return the ranks whose logs were not read, by reason."""
    files = of_job((output for output in outputs if output.why is None), job)
    shared = {output.place.node for output in files if output.place.rank is None}
    had = {output.place.rank for output in files}
    failed = {
        (output.node, output.path): output.why for output in outputs if output.why is not None
    }
    groups: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for rank in job.ranks:
        why, fix = _why(rank.process, failed)
        if (rank.rank not in had and rank.node not in shared) or rank.process.outputs == ():
            groups[why, fix].append((rank.rank, rank.node))
    return [
        Lack(tuple(sorted(r for r, _ in members)), tuple(sorted({n for _, n in members})), why, fix)
        for (why, fix), members in groups.items()
    ]


def _why(process: Process, failed: Mapping[tuple[str, str], str]) -> tuple[str, str]:
    if not process.outputs:
        why = clean(process.denied or "what descriptors 1 and 2 lead to cannot be read")
        return why, "hangtop doctor says what is allowed on that node"
    for path in process.outputs:
        problem = failed.get((process.node, path))
        if problem is not None:
            return clean(
                f"{path}: {problem}"
            ), "see whether that file system answers, and its rights"
    first = process.outputs[0]
    for begin, what, fix in _WHAT:
        if first.startswith(begin):
            return what, fix
    return "it was not read yet", "r reads it"
