"""What to ask of a node by itself, and when: cheap enough to flow, soon enough for a verdict.

A thread that has not run cannot have changed its stack. So every process is sampled once, and
again only after its main thread ran; otherwise its sample is renewed without running py-spy.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.activity import main_thread
from hangtop_core.analysis.standing import FLOOR_S
from hangtop_hook.numericsfile import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.hardware import Gpu
    from hangtop_core.model import StackSample
    from hangtop_core.nodeview import NodeView
    from hangtop_core.stacktable import StackTable
    from hangtop_core.tracked import Tracked
    from hangtop_core.updates import Options

MAX_SAMPLES = 16
"""Processes of one node in one round of samples."""
MAX_TABLES = 4
"""Descriptor tables of one node in one round."""
EARLY = 30.0
"""Seconds after its first sample in which a process may be sampled more often."""
EARLY_MOVES = 11
"""Samples that a process which moves gets in that time, at one a second and ever slower."""
QUIET = 2.0
"""Seconds without the main thread running after which a process counts as waiting."""
LONG_REST = 7.0
"""Seconds after which even what wakes up now and then rests: torch's DataLoader polls every 5 s
(torch 2.13 torch/utils/data/_utils/__init__.py, MP_STATUS_CHECK_INTERVAL)."""
REAL_AGAIN, REAL_NODES = 60.0, 128
"""Seconds after which even a process that never moved is really sampled, for other threads may
have: at first, and of so many nodes. Of more in proportion, since each sample costs the head, and
after `RESTED` of the time for which it has rested, up to `REAL_MOST` times as long."""
REAL_MOST = 5.0
RESTED = 4.0
"""What is done again and again for a process that rests comes so many times as seldom as it has
rested."""
SAMPLE_COST_S = 0.015
"""CPU seconds of one run of py-spy, as long as the node has not told what one takes there."""
SCREEN_SHARE = 0.003
"""Of one core of a node, for stacks of processes that move, where somebody looks at a screen."""
STALLED_SHARE, STALLED_S = 0.03, 180.0
"""The same while a job stalls and nobody knows why: on a node with much to do a run of py-spy costs
more, and its ranks would be looked at minutes apart. For so many seconds of that at most."""
MAX_COST_S = 0.2
"""CPU seconds of one sample that are believed: a node that is out of breath is asked anyway."""
ROUND_S = 4.0
"""Seconds in the same functions after which what a process has open tells something."""
STEADY_MOVES = 6
"""Samples of a moving process at the full rate; then the rate halves, down to a sixth."""
ASK_AGAIN, ASK_LAST = 30.0, 60.0
"""Seconds between two descriptor tables or recorder readings of a process that moves; between
two looks for the recorder of one that has rested for long, at most."""
TABLE_COST_S = 0.25
"""CPU seconds of a descriptor table with who is at the other ends: a walk over all descriptors of
the node (`hangtop_probe.owners`), where that has 30,000 of them."""
WORKER_SERVER = "pt_workerserver"
"""Name of a rank's debug-server thread: torch 2.13 torch/csrc/distributed/c10d/control_plane."""

_SAMPLED_ROLES = frozenset({"rank", "launcher", "dataloader-worker", "subprocess"})

_TABLE_ROLES = frozenset({"rank", "dataloader-worker", "subprocess"})


class Rate(NamedTuple):
    """Seconds between two samples of a process that moves."""

    every: float
    early: float | None = None
    """In the first half minute, where that is less: what a process repeats shows sooner.

    A run of py-spy takes 10 ms of the node's CPU, and a process that moves gets eleven instead of
    six of them in that time. With a thousand nodes rounds are two seconds apart, see `Collector`.
    """
    rest: float = QUIET
    """Seconds of rest after which a process is looked at closely, unless it wakes up now and then:
    who only waits for hangs need not look at every rest between two steps."""
    apart: float = 0.0
    """Seconds at least between two samples of processes that move, of one node: they take turns.
    So what stacks cost does not grow with the ranks of a node. Not in the first half minute of a
    process that is sampled `early`."""

    again: float = REAL_AGAIN
    """Seconds after which what rests is really sampled again, at first."""
    silent: float = 0.0
    """Seconds for which the node has said that it says nothing, as nothing is new there."""

    tables: float = ASK_AGAIN
    """Seconds between two descriptor tables of a process that moves."""

    def of(self, known: Tracked, now: float) -> tuple[float, int]:
        """Return the seconds for one process, and how many of its samples do not slow it down."""
        first = known.sample.first_at if known.sample is not None else None
        if self.early is None:
            return self.every, 0
        if first is not None and now - first > EARLY:
            return self.every, EARLY_MOVES
        return min(self.early, self.every), 0


def rate(options: Options, nodes: int, cost: float, silent: float, *, stalls: bool) -> Rate:
    """Return how often to sample on a node.

    Args:
        options: of the session.
        nodes: how many are observed.
        cost: CPU seconds of one sample there; 0 where that does not matter now.
        silent: seconds for which the node has said that it says nothing.
        stalls: whether a job stalls, and nobody knows why.
    """
    share = options.budget
    if share is None and options.sample_early is not None:
        share = SCREEN_SHARE
    if share is not None and stalls:
        share = max(share, STALLED_SHARE)
    return Rate(
        options.sample_every,
        options.sample_early,
        options.rest,
        apart=cost / share if share else 0.0,
        again=REAL_AGAIN * max(1.0, nodes / REAL_NODES),
        silent=silent,
        tables=max(ASK_AGAIN, TABLE_COST_S / (options.budget or 1.0)),
    )


def stalls(diagnoses: Iterable[Diagnosis]) -> bool:
    """Whether a job has stalled for a while, not for long, and nothing explains it yet."""
    return any(
        not one.verdicts and FLOOR_S <= (one.stalled_for_s or 0.0) < STALLED_S for one in diagnoses
    )


class Plan(NamedTuple):
    """Pids of one node, by what is due."""

    sample: list[int]
    renew: list[int]
    descriptors: list[int]
    recorder: list[int]
    numerics: list[int]


def plan(
    processes: Iterable[Tracked],
    now: float,
    rate: Rate,
    odd: frozenset[int],
    read_at: float | None = None,
) -> Plan:
    """Return what is due on one node.

    Args:
        processes: its live processes.
        now: on the head's clock, as the samples.
        rate: how often a process that moves is sampled.
        odd: pids of ranks whose stack few others share.
        read_at: when its process table was last read; None for now.
    """
    read_at = now if read_at is None else read_at
    due: list[tuple[tuple[int, float], int]] = []
    moving: list[tuple[tuple[int, float], int]] = []
    last_any = 0.0
    result = Plan([], [], [], [], [])
    for known in processes:
        pid, role = known.process.pid, known.process.role
        if known.process.ended:
            continue
        if can_sample(known):
            every, free = rate.of(known, now)
            if _can_renew(known, now, every, read_at, rate):
                # What it did since it was sampled is not known before the table is read again.
                if known.sample is not None and known.sample.at < read_at:
                    result.renew.append(pid)
            elif _sample_due(known, now, every, free, rate, read_at):
                last = known.sample.at if known.sample is not None else 0.0
                moves = _takes_turns(known, now, rate, read_at)
                (moving if moves else due).append(((0 if role == "rank" else 1, last), pid))
            last_any = max(last_any, known.full_sample_at)
        if len(result.descriptors) < MAX_TABLES and _table_due(
            known, now, pid in odd, rate, read_at
        ):
            result.descriptors.append(pid)
        if role == "rank" and _recorder_due(known, now, rate, read_at):
            result.recorder.append(pid)
        if role == "rank" and _numerics_due(known, now):
            result.numerics.append(pid)
    if moving and not due and now - last_any >= rate.apart:
        due.append(min(moving))
    due.sort()
    result.sample.extend(pid for _, pid in due[:MAX_SAMPLES])
    return result


def gpus_stand_still(gpus: Iterable[Gpu], now: float, rest: float) -> bool:
    """Whether GPUs of a node have worked while they were watched, and none has for so long.

    Ranks that spin while they wait look as if they moved; then it is time to look at their stacks.
    """
    worked = [gpu.worked_at for gpu in gpus if gpu.worked_at is not None]
    return bool(worked) and max(worked) < now - rest


def can_sample(known: Tracked) -> bool:
    """Whether py-spy can be expected to see anything in a process."""
    process = known.process
    if process.ended or process.role not in _SAMPLED_ROLES:
        return False
    if process.role != "subprocess":
        return True
    return "python" in process.comm or any("python" in word for word in process.cmdline[:1])


def all_ranks(nodes: Mapping[str, NodeView]) -> dict[str, list[int]]:
    """Return by node the pids of all ranks that can be sampled."""
    return {
        name: [
            pid
            for pid, known in view.live.items()
            if known.process.role == "rank" and can_sample(known)
        ]
        for name, view in nodes.items()
        if view.live
    }


def _takes_turns(known: Tracked, now: float, rate: Rate, read_at: float) -> bool:
    """Whether it moves, and is not new to somebody who looks."""
    if not rate.apart or _quiet(known, read_at, rate.rest):
        return False
    first = known.sample.first_at if known.sample is not None else None
    return rate.early is None or (first is not None and now - first > EARLY)


def _quiet(known: Tracked, read_at: float, rest: float) -> bool:
    """Whether it rested when its table was last read: of what it did since nothing is known."""
    return known.moved_at is None or known.moved_at < read_at - rest


def _can_renew(known: Tracked, now: float, every: float, read_at: float, rate: Rate) -> bool:
    """Whether a process has not run since its sample, as far as its table was read."""
    sample, again = known.sample, rate.again
    if now - read_at > max(2 * every, LONG_REST, 2 * rate.silent):
        return False
    return (
        sample is not None
        and bool(sample.threads)
        and now - sample.at >= every
        and known.still_since(sample.at)
        and now - known.full_sample_at < _again(known, read_at, again, again * REAL_MOST)
    )


def _again(known: Tracked, read_at: float, first: float, last: float) -> float:
    """Seconds between two looks at a process that rests: ever more, within bounds."""
    rested = 0.0 if known.moved_at is None else read_at - known.moved_at
    return min(max(first, rested / RESTED), last)


def _sample_due(
    known: Tracked, now: float, every: float, free: int, rate: Rate, read_at: float
) -> bool:
    sample, rest = known.sample, rate.rest
    if sample is None:
        return known.attempts == 0 or now - known.full_sample_at > every
    if known.attempts:
        return now - known.full_sample_at > min(every * 2.0**known.attempts, REAL_AGAIN)
    age = now - sample.at
    stays = sample.same_functions_since
    if known.process.role == "launcher" and stays is not None and stays < sample.at:
        # It polls for ever, which is told now and then: neither that nor the rest between is news.
        few = max(every * 6.0 * rate.again / REAL_AGAIN, (now - stays) / RESTED)
        return age >= min(few, REAL_AGAIN * REAL_MOST)
    if age > rest and _came_to_rest(known, sample, read_at, rest):
        return True
    slower = max(known.moving_samples - STEADY_MOVES - free, 0)
    factor = 1.0 if known.process.role == "rank" else 6.0
    return age >= every * min(factor * 2.0**slower, 6.0)


def _came_to_rest(known: Tracked, sample: StackSample, read_at: float, rest: float) -> bool:
    """Whether it ran after its last sample and rests now: what it rests in is what matters.

    One that keeps waking up in the same functions has to rest for longer than it usually does.
    """
    if known.moved_at is None or known.moved_at <= sample.at:
        return False
    since = sample.same_functions_since
    wakes_often = since is not None and since < sample.at
    return read_at - known.moved_at > (max(LONG_REST, rest) if wakes_often else rest)


def _table_due(known: Tracked, now: float, odd: bool, rate: Rate, read_at: float) -> bool:
    if known.process.role not in _TABLE_ROLES:
        return False
    quiet = _quiet(known, read_at, rate.rest)
    if not quiet and not (odd and _goes_round(known, now)):
        return False
    if not (odd or _waits_on_file(known)):
        return False
    table = known.descriptors
    if table is None:
        return True
    if known.moved_at is not None and known.moved_at > table.at:
        return now - table.at > (ASK_AGAIN if quiet else rate.tables)
    # Who is at the other ends is looked for in all processes of the node, and changes seldom.
    return now - table.at > _again(known, read_at, 2 * ASK_AGAIN, REAL_AGAIN * REAL_MOST)


def _goes_round(known: Tracked, now: float) -> bool:
    """Whether it runs in the same functions: it may try again and again to write to a full disk."""
    since = known.sample.same_functions_since if known.sample is not None else None
    return since is not None and now - since >= ROUND_S


def _waits_on_file(known: Tracked) -> bool:
    """Whether the main thread is in a system call on a descriptor, a lock or a disk."""
    main = main_thread(known.process)
    if main is None:
        return False
    opens = (main.syscall or "").startswith(("open", "stat", "newfstat"))
    return opens or main.fd is not None or main.state == "D" or "lock_inode" in (main.wchan or "")


def _recorder_due(known: Tracked, now: float, rate: Rate, read_at: float) -> bool:
    """Whether to look for a rank's recorder: at once where it can answer, else when it rests.

    Looking costs the node a few file names. A rank that rests may yet write a dump: torch does so
    when a collective times out.
    """
    server = any(thread.name == WORKER_SERVER for thread in known.process.threads)
    quiet = _quiet(known, read_at, rate.rest)
    recorder = known.recorder
    if recorder is None:
        return server or quiet
    asked = max(recorder.at, known.recorder_asked)
    if known.moved_at is not None and known.moved_at > asked:
        return now - asked > (QUIET if quiet else ASK_AGAIN) and (server or quiet)
    many = rate.again / REAL_AGAIN
    again = _again(known, read_at, max(ASK_AGAIN, many * 16), max(ASK_LAST, many * 40))
    return recorder.failure is not None and now - asked > again


def _numerics_due(known: Tracked, now: float) -> bool:
    """Whether to read what a rank has found that is not finite, where it looks for that."""
    if VARIABLE not in known.process.env:
        return False
    return known.numerics_asked is None or now - known.numerics_asked > ASK_AGAIN


def odd_ranks(ranks: Iterable[Tracked], stacks: StackTable) -> Mapping[str, frozenset[int]]:
    """Return by node the pids of a job's ranks whose main stack few others share."""
    shapes = {
        (known.node, known.process.pid): stacks.shape(known.sample.threads[0].stack)[1]
        for known in ranks
        if known.sample is not None and known.sample.threads
    }
    sizes = Counter(shapes.values())
    if len(sizes) < 2:
        return {}
    largest = max(sizes.values())
    few = max(2, len(shapes) // 8)
    found: dict[str, set[int]] = {}
    for (node, pid), shape in shapes.items():
        if sizes[shape] <= few and (sizes[shape] < largest or largest == 1):
            found.setdefault(node, set()).add(pid)
    return {node: frozenset(pids) for node, pids in found.items()}
