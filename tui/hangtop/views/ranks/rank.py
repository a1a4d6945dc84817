"""One rank: its stacks, its process, its threads, its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import EMPTY, Line, labelled, line
from hangtop.views.common import (
    STATE_LETTERS,
    STATE_ROLES,
    ago,
    call_text,
    idle_seconds,
    last_ran,
    last_seen_text,
    main_frames,
    node_of,
    silence,
    span,
    waits_lines,
)
from hangtop.views.nodes.resources import file_lines, group_lines
from hangtop.views.ranks.places import doing
from hangtop.views.ranks.stacks import frame_lines, last_seen
from hangtop_core.analysis.gpus import Slots, describe
from hangtop_core.analysis.versions import NAMES
from hangtop_core.text.clean import how_ended, plural, size

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import (
        Process,
        Rank,
        Snapshot,
        StackSample,
        Thread,
        ThreadStack,
    )

SOFTWARE = ("torch", "cuda", "hip", "nccl", "python")
"""Libraries whose versions sometimes differ between ranks, of all that a rank has loaded."""


def stack_title(snapshot: Snapshot, rank: Rank, now: float) -> tuple[Line, Line]:
    """Return title and note of the stack pane."""
    node = node_of(snapshot, rank.node)
    quiet = silence(node, now)
    sample = rank.sample
    title = line(("STACK  ", "title"), rank.name)
    if sample is None:
        return title, line(("not sampled", "warn"))
    how = "" if sample.mode == "nonblocking" else f", {sample.mode}"
    note = line(("sampled ", "label"), f"{ago(sample.at, now)}{how}")
    if node is not None and quiet is not None:
        return title, line((f"{node.name} {last_seen_text(node.state, quiet)}  ", "bad"), note)
    if sample.same_since is not None and sample.count > 1:
        note = line(note, ("  same for ", "label"), span(sample.at - sample.same_since))
    return title, note


def stack_lines(
    snapshot: Snapshot, sample: StackSample | None, *, all_threads: bool, cut: bool
) -> list[Line]:
    """Return the stacks of the main thread or of every thread, or why there is none."""
    if sample is None:
        return [line("No stack has been taken yet."), line(("b", "key"), " takes it now.")]
    if sample.failure is not None:
        lines = [line((f"No stack: {sample.failure.text}", "warn"))]
        if sample.failure.fix:
            lines.append(labelled("fix", sample.failure.fix, 4))
        if not sample.threads:
            return lines
        lines.append(EMPTY)
    else:
        lines = []
    shown = sample.threads if all_threads else sample.threads[:1]
    for thread in shown:
        lines.append(_thread_title(thread))
        lines += [
            line("  ", item) for item in frame_lines(snapshot.stacks.get(thread.stack, ()), cut=cut)
        ]
        lines += _locals(thread)
        lines.append(EMPTY)
    hidden = len(sample.threads) - len(shown)
    if hidden:
        names = ", ".join(t.name or f"tid {t.tid}" for t in sample.threads[1:5])
        lines.append(
            line(
                (f"{plural(hidden, 'more thread')}: {names}", "dim"),
                "  ",
                ("t", "key"),
                (" all", "dim"),
            )
        )
    return lines


def _thread_title(thread: ThreadStack) -> Line:
    marks = [word for word, on in (("active", thread.active), ("holds the GIL", thread.gil)) if on]
    return line(
        (thread.name or "thread", "title"),
        (f"  tid {thread.tid}" if thread.tid else "", "label"),
        ("  " + ", ".join(marks) if marks else "", "warn"),
    )


def _locals(thread: ThreadStack) -> list[Line]:
    return [
        line("    ", (f"{local.name} = ", "label"), local.value)
        for frame in thread.locals
        for local in frame
    ]


def process_lines(snapshot: Snapshot, rank: Rank, now: float) -> list[Line]:
    """Return what /proc says of the rank's process; on a silent node, the last known data."""
    process = rank.process
    quiet = silence(node_of(snapshot, rank.node), now) or 0.0
    counts = line(
        size(process.meters.rss),
        ("  threads ", "label"),
        str(process.thread_count or len(process.threads)),
        ("  fds ", "label"),
        "?" if process.fd_count is None else str(process.fd_count),
    )
    shares = line(_share(rank.cpu_share), ("  main thread ", "label"), _share(rank.main_cpu_share))
    return [
        *last_seen(snapshot, rank, now),
        *_condition(rank, now, quiet),
        *waits_lines(process),
        *file_lines(rank, now - quiet),
        labelled("cpu", shares),
        labelled("memory", counts),
        *(labelled("gpu", describe(slot.gpu)) for slot in Slots(snapshot.nodes).of(rank)),
        *group_lines(snapshot, rank),
        *_identity(rank, now),
    ]


def _condition(rank: Rank, now: float, quiet: float) -> list[Line]:
    """Return the state of a rank, and what blocks it or hangtop's view of it."""
    process = rank.process
    gone = rank.ended
    idle = idle_seconds(rank, now - quiet)
    state = line((rank.state, STATE_ROLES[rank.state] or "bold"))
    if idle is not None and not gone:
        last_run = last_ran(idle, then=bool(quiet))
        state = line(state, ("  main thread last ran ", "label"), last_run)
    lines = [labelled("state", state)]
    if gone and process.exit_code is not None:
        lines.append(labelled("ended", how_ended(process.exit_code)))
    if process.denied:
        lines.append(labelled("denied", line((process.denied, "warn"))))
    if process.tracer_pid:
        tracer = f"{process.tracer or '?'} (pid {process.tracer_pid})"
        lines.append(labelled("tracer", line((tracer, "bad"))))
    if process.frozen:
        by = f"by cgroup {process.frozen_by}" if process.frozen_by else "with its cgroup"
        lines.append(labelled("frozen", line((by, "bad"))))
    return lines


def _identity(rank: Rank, now: float) -> list[Line]:
    """Return the identity of a rank: pid, number, command, output, parent."""
    process = rank.process
    up = span(now - process.started_at)
    identity = line(str(process.pid), ("  user ", "label"), process.user, ("  up ", "label"), up)
    versions = process.versions
    software = "  ".join(f"{NAMES[key]} {versions[key]}" for key in SOFTWARE if key in versions)
    launcher = f"{process.launcher} (pid {process.launcher_pid or '?'})" if process.launcher else ""
    return [
        labelled("pid", identity),
        labelled("rank", _number(rank)),
        *_if_known("groups", "  ".join(f"{name} {at}" for name, at in process.axes.items())),
        labelled("cmd", " ".join(process.cmdline) or process.comm),
        *_if_known("software", software),
        *_if_known("launcher", launcher),
        *_if_known("cwd", process.cwd),
        *_output_paths(process),
        *_if_known("cgroup", process.cgroup if process.cgroup != "/" else None),
    ]


def _number(rank: Rank) -> Line:
    """Return the number of a rank, its source, and what contradicts it."""
    process = rank.process
    source = f"  from {process.rank_source}" if process.rank_source else ""
    local = "" if rank.local_rank is None else f"  local rank {rank.local_rank}"
    dispute = f"  but its {process.rank_disputed}" if process.rank_disputed else ""
    return line(rank.name.removeprefix("rank "), (source, "dim"), local, (dispute, "warn"))


def _output_paths(process: Process) -> list[Line]:
    if len(set(process.outputs)) == 1:
        return [labelled("output", process.outputs[0])]
    names = zip(("stdout", "stderr"), process.outputs, strict=False)
    return [labelled(name, target) for name, target in names]


def _if_known(label: str, value: str | None) -> list[Line]:
    return [labelled(label, value)] if value else []


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread, as the kernel shows it."""

    key: str
    thread: Thread
    name: str
    """Name in Python, else in the kernel."""
    target: str
    """Target of its descriptor."""
    role: str


def thread_rows(rank: Rank) -> list[ThreadRow]:
    """Return all threads of a rank, the main thread first."""
    table = rank.descriptors.descriptors if rank.descriptors else ()
    targets = {item.fd: item.target for item in table}
    names = {thread.tid: thread.name for thread in rank.sample.threads} if rank.sample else {}
    return [
        ThreadRow(
            key=str(thread.tid),
            thread=thread,
            name=names.get(thread.tid) or thread.name,
            target="" if thread.fd is None else targets.get(thread.fd, ""),
            role={"D": "bad", "T": "bad", "t": "bad", "R": "good"}.get(thread.state, ""),
        )
        for thread in sorted(rank.process.threads, key=lambda t: (t.tid != rank.process.pid, t.tid))
    ]


THREAD_COLUMNS: tuple[Column[ThreadRow], ...] = (
    Column(
        "tid",
        "TID",
        lambda row: line(str(row.thread.tid)),
        lambda row: row.thread.tid,
        align="right",
        minimum=5,
        drop=5,
    ),
    Column(
        "name",
        "NAME",
        lambda row: line(row.name),
        lambda row: row.name,
        minimum=8,
        maximum=17,
    ),
    Column(
        "state",
        "STATE",
        lambda row: line((STATE_LETTERS.get(row.thread.state, row.thread.state), row.role)),
        lambda row: row.thread.state,
        minimum=7,
        maximum=9,
    ),
    Column(
        "call",
        "SYSCALL",
        lambda row: line(call_text(row.thread)),
        lambda row: call_text(row.thread),
        minimum=8,
        maximum=24,
    ),
    Column(
        "wchan",
        "WCHAN",
        lambda row: line(row.thread.wchan or "-"),
        lambda row: row.thread.wchan or "",
        minimum=8,
        maximum=24,
        drop=2,
    ),
    Column(
        "target",
        "ON",
        lambda row: line((row.target, "link" if row.target else "")),
        lambda row: row.target,
        minimum=4,
        maximum=48,
        flex=True,
        keep_end=True,
        optional=True,
        drop=1,
    ),
)


@dataclass(frozen=True, slots=True)
class ChildRow:
    """One process that belongs to a rank."""

    key: str
    process: Process
    place: str
    call: str


def child_rows(snapshot: Snapshot, rank: Rank) -> list[ChildRow]:
    """Return the children of a rank, with their innermost frame if they were sampled."""
    rows = []
    for child in rank.children:
        sample = rank.child_samples.get(child.pid)
        place, call = doing(main_frames(snapshot, sample))
        if sample is not None and sample.failure is not None and not place:
            place = f"no stack: {sample.failure.text}"
        rows.append(ChildRow(f"{child.pid}:{child.start}", child, place, call))
    return rows


def _child_waits(row: ChildRow) -> str:
    main = row.process.main_thread
    return "-" if main is None else call_text(main)


CHILD_COLUMNS: tuple[Column[ChildRow], ...] = (
    Column(
        "pid",
        "PID",
        lambda row: line(str(row.process.pid)),
        lambda row: row.process.pid,
        align="right",
        minimum=5,
    ),
    Column(
        "what",
        "WHAT",
        lambda row: line(row.process.label.removeprefix("DataLoader ")),
        lambda row: row.process.label,
        minimum=8,
        maximum=24,
    ),
    Column(
        "state",
        "STATE",
        lambda row: line(
            (
                STATE_LETTERS.get(row.process.state, row.process.state),
                "bad" if row.process.state in "DTtZ" else "",
            )
        ),
        lambda row: row.process.state,
        minimum=7,
        maximum=9,
    ),
    Column(
        "waits",
        "WAITS IN",
        lambda row: line(_child_waits(row)),
        _child_waits,
        minimum=8,
        maximum=20,
        drop=3,
    ),
    Column(
        "place",
        "AT",
        lambda row: line((row.place, "warn" if row.place.startswith("no stack") else "")),
        lambda row: row.place,
        minimum=20,
        maximum=60,
        flex=True,
        keep_end=True,
        drop=1,
    ),
    Column("call", "CALL", lambda row: line((row.call, "code")), maximum=16, optional=True, drop=4),
    Column(
        "cmd",
        "COMMAND",
        lambda row: line((" ".join(row.process.cmdline) or row.process.comm, "dim")),
        minimum=10,
        maximum=80,
        flex=True,
        drop=5,
    ),
)
