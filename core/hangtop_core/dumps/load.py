"""From paths to the traces of a job: find, read, keep one per rank, and report problems."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from statistics import median_low
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hangtop_core.analysis.flight.world import Memberships, member_runs
from hangtop_core.dumps.find import Problem, find
from hangtop_core.dumps.pool import read
from hangtop_core.model.recorder.clock import without_untimely
from hangtop_core.model.recorder.trace import Trace
from hangtop_core.text.clean import duration, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.dumps.find import DumpFile

DEFAULT_DESC = "default_pg"
MIN_TO_COMPARE = 3
STALE_S = 3600.0
"""Seconds, and twice the timeout, by which a dump of an earlier run ends before most others."""
_OLD_PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108 - where torch up to 2.8 writes
_CERTAIN = frozenset({"truncated", "empty", "refused", "too-large"})
"""Problems of files that are certainly dumps, whatever their names."""
_PACKED = re.compile(r"(\.(gz|xz|bz2|zst|lz4|zip|tmp|part|partial|bak)|~)$", re.IGNORECASE)
"""Endings of names of dumps that are packed, or not complete yet."""
_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


class Loaded(Struct):
    """The dumps that were read."""

    traces: list[Trace]
    """One per rank, ascending."""
    problems: list[Problem]
    files: int
    """Number of files that looked like dumps."""


def default_patterns(environ: Mapping[str, str]) -> list[str]:
    """Return where torch writes dumps by its settings and defaults, newest versions first."""
    configured = [environ[name] + "*" for name in _NAMES if environ.get(name)]
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", "/"), ".cache")
    return [*configured, os.path.join(cache, "torch", "comm_lib_trace_rank_*"), _OLD_PREFIX + "*"]


def load(
    paths: Sequence[str],
    prefix: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    replica_size: int | None = None,
) -> Loaded:
    """Read all dumps under some paths.

    Args:
        paths: files, directories, patterns.
        prefix: text before the rank in file names; None: inferred from the names.
        progress: called with the numbers of read and of all files.
        replica_size: ranks of one torchft replica: default groups are numbered within replicas.

    Raises:
        UsageError: a path does not exist.
    """
    files, problems = find(paths, prefix)
    total = len(files)
    reading = read(files, None if progress is None else lambda done: progress(done, total))
    problems = _by_name([*problems, *reading.problems], [trace.source for trace in reading.traces])
    traces, duplicates = _one_per_rank(reading.traces, {file.path: file for file in files})
    traces, clocks = _timely(traces)
    traces, stale = _without_stale(traces)
    problems += [*duplicates, *clocks, *stale]
    if replica_size:
        traces = [_shifted(trace, replica_size) for trace in traces]
    problems += _suspicious(traces)
    return Loaded(traces, sorted(problems, key=lambda problem: problem.path), total)


def _by_name(problems: Sequence[Problem], read_paths: Sequence[str]) -> list[Problem]:
    """Return problems, with a rank only if the file's name is that of a dump.

    A log beside the dumps has the number of a rank in its name, too.
    """
    dumps = [*read_paths, *(problem.path for problem in problems if problem.kind in _CERTAIN)]
    if not dumps:
        return list(problems)
    shapes, endings = {_shape(path) for path in dumps}, {_ending(path) for path in dumps}

    def is_of_dump(problem: Problem) -> bool:
        if problem.kind in _CERTAIN or _shape(problem.path) in shapes:
            return True
        return not os.path.isdir(problem.path) and _ending(problem.path) in endings

    return [problem if is_of_dump(problem) else replace(problem, rank=None) for problem in problems]


def _shape(path: str) -> str:
    """Return a file's name without its numbers: equal for all dumps of a job on one node."""
    return re.sub(r"\d+", "#", _PACKED.sub("", os.path.basename(path)))


def _ending(path: str) -> str:
    """Return the end of a file's name, without numbers."""
    return re.sub(r"\d+", "", os.path.splitext(path)[1])


def _one_per_rank(
    traces: Sequence[Trace], files: Mapping[str, DumpFile]
) -> tuple[list[Trace], list[Problem]]:
    by_rank: dict[int, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_rank[trace.rank].append(trace)
    kept, problems = [], []
    for rank in sorted(by_rank):
        ordered = sorted(
            by_rank[rank],
            key=lambda dump: (dump.newest_ns, files[dump.source].modified, dump.source),
        )
        kept.append(ordered[-1])
        for trace in ordered[:-1]:
            why = f"is another dump of rank {rank}; the newer one, {ordered[-1].source}, is used"
            problems.append(Problem(trace.source, "duplicate", why, rank))
    return kept, problems


def _timely(traces: Sequence[Trace]) -> tuple[list[Trace], list[Problem]]:
    """Leave out times from before a clock was set back: they would lie in the future."""
    kept, problems = [], []
    for trace in traces:
        timely, count = without_untimely(trace)
        kept.append(timely)
        if count:
            times = plural(count, "time")
            why = f"is of a rank whose clock was set back: {times} from before are not used"
            problems.append(Problem(trace.source, "clock-set", why, trace.rank))
    return kept, problems


def _without_stale(traces: list[Trace]) -> tuple[list[Trace], list[Problem]]:
    """Leave out dumps of an earlier run: a rank that wrote none keeps its old file."""
    times = [trace.newest_ns for trace in traces if trace.newest_ns]
    if len(times) < MIN_TO_COMPARE:
        return traces, []
    usual = median_low(times)
    margin = max(STALE_S, 2 * max(trace.timeout_ms for trace in traces) / 1000) * 1e9
    kept, problems = [], []
    for trace in traces:
        age = usual - trace.newest_ns
        if trace.newest_ns and age > margin:
            why = f"is {duration(age / 1e9)} older than most: of an earlier run, and not used"
            problems.append(Problem(trace.source, "stale", why, trace.rank))
        else:
            kept.append(trace)
    return kept, problems


def _suspicious(traces: Sequence[Trace]) -> list[Problem]:
    """Return problems of files that were used."""
    problems = []
    versions = Counter(trace.version for trace in traces)
    usual = versions.most_common(1)[0][0] if versions else ""
    for trace in traces:
        if trace.configured and _is_outside_groups(trace):
            why = f"is of none of the groups it describes: rank {trace.rank} may be misread"
            problems.append(Problem(trace.source, "misnamed", why, trace.rank))
        if trace.version != usual:
            why = f"has format version {trace.version or '?'}, most others {usual or '?'}"
            problems.append(Problem(trace.source, "version", why, trace.rank))
        if trace.dropped:
            why = f"{trace.dropped} of its entries cannot be read"
            problems.append(Problem(trace.source, "foreign", why, trace.rank))
    return problems


def _is_outside_groups(trace: Trace) -> bool:
    """Whether the groups of a trace have members, but not its rank."""
    texts = {group.members for group in trace.groups}
    runs = [run for text in texts for run in member_runs(text)]
    return bool(runs) and not any(first <= trace.rank <= last for first, last in runs)


def _shifted(trace: Trace, size: int) -> Trace:
    """Return a trace whose default group is numbered over all replicas, as torchft jobs need it."""
    first = trace.rank // size * size
    groups, memberships = [], Memberships()
    for group in trace.groups:
        if group.desc == DEFAULT_DESC and (members := memberships.of(group.members)):
            shifted = str([rank + first for rank in members])
            groups.append(replace(group, members=shifted))
        else:
            groups.append(group)
    return replace(trace, groups=tuple(groups))
