"""Next steps about the core of a rank: where it should be, and `hangtop core` on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.steps import on_node, word
from hangtop_core.model.node.core_pattern import Place, expected, understand
from hangtop_core.text.clean import clean, size
from hangtop_core.text.commands import Advice, Glob, Word

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Rank
    from hangtop_core.text.commands import Step

_WHY = "why it crashed, by its core file"
NEXT_TIME = Advice(
    "with `ulimit -c unlimited` and PYTHONFAULTHANDLER=1 the next crash leaves a stack"
)


def dumping_to(case: Case, subject: Subject) -> str:
    """Where a core goes that is being written, to follow `its core`."""
    place, cwd = _place(case, subject.rank), subject.rank.process.cwd
    if place is not None and place.handler is not None:
        return f"to {clean(place.handler, 60)}"
    where = (place.directory if place is not None else None) or cwd
    return f"to disk, probably under {clean(where, 200)}" if where else "to disk"


def dumping_steps(case: Case, subject: Subject) -> tuple[Step, ...]:
    """How to wait for a core that is being written, to do without it, and to read it."""
    place, meters = _place(case, subject.rank), subject.rank.process.meters
    most = f" (up to {size(meters.rss)})" if meters is not None and meters.rss else ""
    if place is not None and place.handler is not None:
        wait = f"wait until {clean(place.handler, 60)} has taken it{most}"
        # A command gets every core, but for a limit of one byte: core(5), fs/coredump.c.
        limit: tuple[Word, ...] = ("prlimit", "--core=1", "COMMAND")
    else:
        wait, limit = f"wait until it is written{most}", ("ulimit", "-c", 0)
    without = on_node("", *limit, why="next time without a core")
    end = on_node(
        subject.rank.node, "kill", "-9", subject.pid, why="or give it up, which ends the rank"
    )
    return (
        Advice(wait),
        end,
        without,
        *core_steps(case, subject.rank, subject.pid, written=True),
    )


def core_steps(
    case: Case, rank: Rank, pid: int | None, *, written: bool = False
) -> tuple[Step, ...]:
    """How to read the core of a rank that has crashed, or why there is none.

    ``rank`` may be one beside it, ``pid`` is its own, where that is known.
    One that is being ``written`` is there whatever the limit says.
    """
    process = rank.process
    place = _place(case, rank)
    if place is None:
        cwd = word(process.cwd) if process.cwd else None
        return (on_node("", "hangtop", "core", cwd or "CORE", why=_WHY), NEXT_TIME)
    if place.off:
        return (Advice("core_pattern of the node is empty: no core was written"), NEXT_TIME)
    if process.limits.core_size == 0 and place.limited and not written:
        return (Advice(f"it leaves no core: ulimit -c is 0; {NEXT_TIME}"),)
    if place.handler is not None:
        steps: list[Step] = []
        if place.command is not None:
            steps.append(on_node(rank.node, *_with_pid(place.command, pid)))
        if place.opens is None:
            why = f"{_WHY}, which {clean(place.handler, 60)} has got"
            return (on_node("", "hangtop", "core", "CORE", why=why),)
        opens = _with_pid(place.opens, pid)
        return (*steps, on_node("", "hangtop", "core", *opens, why=_WHY))
    return (
        _read(case, rank, pid, place),
        Advice("PYTHONFAULTHANDLER=1 prints the stack of the next crash"),
    )


def _place(case: Case, rank: Rank) -> Place | None:
    node = case.nodes.get(rank.node)
    fact = node.capabilities.get("core") if node is not None else None
    if fact is None or not fact.ok or fact.path is None:
        return None
    return understand(fact.path, uses_pid=fact.version == "pid")


def _read(case: Case, rank: Rank, pid: int | None, place: Place) -> Step:
    process, node = rank.process, case.nodes.get(rank.node)
    code = process.exit_code
    path = expected(
        place,
        pid=pid,
        comm=process.comm,
        cwd=process.cwd,
        node=(node.hostname if node is not None else None) or rank.node,
        signal=-code if code is not None and code < 0 else None,
    )
    core = Glob(tuple(path.split("*"))) if path is not None and word(path) else "CORE"
    if node is not None and node.shell is None:
        return on_node(rank.node, "hangtop", "core", core)
    why = f"on {rank.node}, or here where that directory is shared"
    return on_node("", "hangtop", "core", core, why=why)


def _with_pid(words: str, pid: int | None) -> list[Word]:
    """The words of a command of ours, with the process where it has `PID`; `*` is a shell's."""
    text = words if pid is None else words.replace("PID", str(pid))
    return [Glob(tuple(one.split("*"))) if "*" in one else one for one in text.split()]
