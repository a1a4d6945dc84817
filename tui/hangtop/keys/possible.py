"""The conditions of actions, and the message where one is not met."""

from __future__ import annotations

from collections.abc import Callable

from hangtop.source.dump_files import NO_NODE, NOTHING_RUNS
from hangtop.source.situation import Situation
from hangtop_core.model.node.states import OBSERVED

Possible = Callable[[Situation], str | None]
"""A condition: the reason why an action is not possible now, or None when it is."""


def _all_of(*conditions: Possible) -> Possible:
    """Return a condition that gives the first unmet condition's reason."""

    def reason(now: Situation) -> str | None:
        for condition in conditions:
            if why := condition(now):
                return why
        return None

    return reason


def always(_: Situation) -> str | None:
    """Allow the action at any time."""
    return None


def needs_job(now: Situation) -> str | None:
    """Require a job."""
    return None if now.job else "there is no training job"


def needs_processes(now: Situation) -> str | None:
    """Require more than dump files."""
    return NOTHING_RUNS if now.files else None


def needs_node(now: Situation) -> str | None:
    """Require a chosen node, directly or through its rank."""
    return None if now.node else "no node is chosen"


def _is_live(now: Situation) -> str | None:
    return None if now.live else NO_NODE


def _is_rank_chosen(now: Situation) -> str | None:
    return None if now.rank else "no rank is chosen"


def _is_rank_alive(now: Situation) -> str | None:
    return "the rank has exited" if now.rank and now.rank.ended else None


def _has_ranks(now: Situation) -> str | None:
    return None if now.job is None or now.job.ranks else "no rank of this job is seen"


def _is_observed(now: Situation) -> str | None:
    node = now.node
    if node is None or node.state in OBSERVED:
        return None
    return f"{node.name} is {node.state}: it cannot be asked"


def _may_write(now: Situation) -> str | None:
    return "hangtop was started with --readonly" if now.readonly else None


def _tool(name: str) -> Possible:
    """Return the condition that a program can be used on the node."""

    def reason(now: Situation) -> str | None:
        fact = now.capabilities.get(name)
        if fact is None or fact.ok:
            return None
        return ", ".join(part for part in (fact.why or f"{name} is not usable", fact.fix) if part)

    return reason


def _is_not_tracing(now: Situation) -> str | None:
    if not now.tracing:
        return None
    return _with_key(now, "a trace is running", "; ", "stop", " stops it")


def _is_tracing(now: Situation) -> str | None:
    return None if now.tracing else "no trace is running"


needs_rank = _all_of(needs_processes, needs_job, _is_rank_chosen)
"""Requires a chosen rank."""
needs_live = _all_of(needs_processes, _is_live)
"""Requires a live session."""
can_ask_all = _all_of(needs_live, needs_job)
"""Requires a job in a live session."""
can_ask = _all_of(needs_live, needs_rank, _is_observed, _is_rank_alive)
"""Requires a running rank on a responding node."""
can_sample = _all_of(needs_live, needs_rank, _is_observed, _tool("py-spy"), _is_rank_alive)
"""Requires py-spy, and a running rank."""
can_nettest = _all_of(needs_live, _may_write)
"""Requires permission to write: it opens ports on nodes, and starts processes there."""
can_dump = _all_of(needs_live, needs_job, _has_ranks, _may_write)
"""Requires permission to write: the rank writes the dump, on its node."""
_can_stop_rank = _all_of(can_nettest, needs_rank, _is_observed)
can_native = _all_of(_can_stop_rank, _tool("py-spy"), _is_rank_alive)
"""Requires permission to pause the rank, which native frames need while they are read."""
can_strace = _all_of(_is_not_tracing, _can_stop_rank, _tool("strace"), _is_rank_alive)
"""Requires strace, and no running trace."""
can_stop = _all_of(needs_live, _is_tracing)
"""Requires a running trace."""
can_core = _all_of(_can_stop_rank, _tool("gdb"), _is_rank_alive)
"""Requires permission to pause the rank: gdb stops it while it writes its memory."""
can_debug = _all_of(_can_stop_rank, _is_rank_alive)
"""Requires permission to pause the rank: a prompt stops it. Whether a prompt is possible is only
checked when it is asked for.
"""
can_shell = _all_of(needs_live, needs_node)
"""Requires a known way to the node; what is done there is the user's own."""


def can_retry(now: Situation) -> str | None:
    """Require a node that does not respond: only such a node can be reconnected."""
    if now.live and now.node is not None and now.node.state in (*OBSERVED, "connecting"):
        how = "being connected to already" if now.node.state == "connecting" else "connected"
        return f"{now.node.name} is {how}: there is nothing to try again"
    return needs_live(now) or needs_node(now)


_BACK = (": ", "step_back", " goes back")


def _with_key(now: Situation, why: str, between: str, action: str, does: str) -> str:
    """Return a reason, and the key that changes it, where there is one."""
    key = now.keys.get(action)
    return f"{why}{between}{key}{does}" if key else why


def has_earlier(now: Situation) -> str | None:
    """Require an earlier snapshot."""
    return None if now.earlier else "no earlier picture is kept"


def has_later(now: Situation) -> str | None:
    """Require a later snapshot, which exists only while the past is shown."""
    if now.live:
        return None if now.paused else _with_key(now, "this is live", *_BACK)
    return None if now.later else _with_key(now, "this is the newest picture", *_BACK)


def can_pause(now: Situation) -> str | None:
    """Require a live session: a capture is always paused."""
    if now.live or now.files:
        return None
    keys = [now.keys[name] for name in ("step_back", "step_forward") if name in now.keys]
    steps = f"; {' '.join(keys)} step through it" if keys else ""
    return f"{NO_NODE}, and nothing moves{steps}"


def can_capture(now: Situation) -> str | None:
    """Require a live session: only observations can be written."""
    if now.writing:
        return "a capture is being written"
    live = None if now.live else "this is a capture already"
    return needs_processes(now) or live


def several_jobs(now: Situation) -> str | None:
    """Require several jobs to choose from."""
    return None if now.jobs > 1 or now.in_slurm else "there is only one job"


def has_trace(now: Situation) -> str | None:
    """Require a trace to read."""
    none = _with_key(now, "there is no trace", "; ", "strace", " starts one")
    return needs_live(now) or (None if now.traced else none)


def has_stacks(now: Situation) -> str | None:
    """Require Stacks, or an existing rank."""
    return needs_job(now) if now.screen == "stacks" else needs_rank(now)
