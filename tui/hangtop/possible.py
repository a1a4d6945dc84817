"""When an action is possible, and what to say where it is not."""

from __future__ import annotations

from collections.abc import Callable

from hangtop.files import NO_NODE, NOTHING_RUNS
from hangtop.situation import Situation
from hangtop_core.nodestates import OBSERVED

Possible = Callable[[Situation], str | None]
"""Why it is not possible now, or None when it is."""


def always(_: Situation) -> str | None:
    """Possible at any time."""
    return None


def needs_job(now: Situation) -> str | None:
    """There must be a job."""
    return None if now.job else "there is no training job"


def needs_processes(now: Situation) -> str | None:
    """There must be more than dump files."""
    return NOTHING_RUNS if now.files else None


def needs_rank(now: Situation) -> str | None:
    """A rank must be chosen."""
    rank = None if now.rank else "no rank is chosen"
    return needs_processes(now) or needs_job(now) or rank


def needs_live(now: Situation) -> str | None:
    """Something must be there to ask."""
    return needs_processes(now) or (None if now.live else NO_NODE)


def can_sample(now: Situation) -> str | None:
    """py-spy must be there, and the rank alive."""
    return needs_live(now) or needs_rank(now) or _silent(now) or _sampler(now) or _gone(now)


def can_ask_all(now: Situation) -> str | None:
    """There must be a job, and somebody to ask."""
    return needs_live(now) or needs_job(now)


def can_ask(now: Situation) -> str | None:
    """The rank must be alive, and its node must answer."""
    return needs_live(now) or needs_rank(now) or _silent(now) or _gone(now)


def can_dump(now: Situation) -> str | None:
    """A dump is written by the rank, on its node."""
    ranks = None if now.job is None or now.job.ranks else "no rank of this job is seen"
    return needs_live(now) or needs_job(now) or ranks or _writes(now)


def can_native(now: Situation) -> str | None:
    """Native frames pause the target while they are read."""
    return _writes(now) or needs_rank(now) or _silent(now) or _sampler(now) or _gone(now)


def can_strace(now: Situation) -> str | None:
    """strace must be there, and not run already."""
    if now.tracing:
        return _with_key(now, "a trace is running", "; ", "stop", " stops it")
    wrong = _writes(now) or needs_rank(now) or _silent(now)
    return wrong or _tool(now, "strace") or _gone(now)


def can_stop(now: Situation) -> str | None:
    """A trace must be running."""
    return needs_live(now) or (None if now.tracing else "no trace is running")


def can_core(now: Situation) -> str | None:
    """gdb stops the rank while it writes its memory."""
    wrong = _writes(now) or needs_rank(now) or _silent(now)
    return wrong or _tool(now, "gdb") or _gone(now)


def can_debug(now: Situation) -> str | None:
    """A prompt stops the rank; whether there is a way to one is said when it is asked for."""
    return _writes(now) or needs_rank(now) or _silent(now) or _gone(now)


def can_nettest(now: Situation) -> str | None:
    """It opens ports on nodes, and starts processes there."""
    return _writes(now)


def _writes(now: Situation) -> str | None:
    readonly = "hangtop was started with --readonly" if now.readonly else None
    return needs_live(now) or readonly


def _tool(now: Situation, name: str) -> str | None:
    fact = now.capabilities.get(name)
    if fact is None or fact.ok:
        return None
    return ", ".join(part for part in (fact.why or f"{name} is not usable", fact.fix) if part)


def _sampler(now: Situation) -> str | None:
    return _tool(now, "py-spy")


def _silent(now: Situation) -> str | None:
    node = now.node
    if node is None or node.state in OBSERVED:
        return None
    return f"{node.name} is {node.state}: it cannot be asked"


def _gone(now: Situation) -> str | None:
    return "the rank has exited" if now.rank and now.rank.ended else None


def needs_node(now: Situation) -> str | None:
    """A node must be chosen, by itself or by its rank."""
    return None if now.node else "no node is chosen"


def can_shell(now: Situation) -> str | None:
    """The way to the node must be known; what is done there is the user's own."""
    return needs_live(now) or needs_node(now)


def can_retry(now: Situation) -> str | None:
    """Only what does not answer can be connected to again."""
    if now.live and now.node is not None and now.node.state in (*OBSERVED, "connecting"):
        how = "being connected to already" if now.node.state == "connecting" else "connected"
        return f"{now.node.name} is {how}: there is nothing to try again"
    return needs_live(now) or needs_node(now)


_BACK = (": ", "step_back", " goes back")


def _with_key(now: Situation, why: str, between: str, action: str, does: str) -> str:
    """A reason, and the key that changes it, where there is one."""
    key = now.keys.get(action)
    return f"{why}{between}{key}{does}" if key else why


def has_earlier(now: Situation) -> str | None:
    """A picture before this one must be kept."""
    return None if now.earlier else "no earlier picture is kept"


def has_later(now: Situation) -> str | None:
    """Only in the past there is something later."""
    if now.live:
        return None if now.paused else _with_key(now, "this is live", *_BACK)
    return None if now.later else _with_key(now, "this is the newest picture", *_BACK)


def can_pause(now: Situation) -> str | None:
    """A capture stands still."""
    if now.live or now.files:
        return None
    keys = [now.keys[name] for name in ("step_back", "step_forward") if name in now.keys]
    steps = f"; {' '.join(keys)} step through it" if keys else ""
    return f"{NO_NODE}, and nothing moves{steps}"


def can_capture(now: Situation) -> str | None:
    """Only what is observed can be written."""
    if now.writing:
        return "a capture is being written"
    live = None if now.live else "this is a capture already"
    return needs_processes(now) or live


def several_jobs(now: Situation) -> str | None:
    """There must be a choice."""
    return None if now.jobs > 1 or now.in_slurm else "there is only one job"


def has_trace(now: Situation) -> str | None:
    """There must be a trace to read."""
    none = _with_key(now, "there is no trace", "; ", "strace", " starts one")
    return needs_live(now) or (None if now.traced else none)


def has_stacks(now: Situation) -> str | None:
    """On Stacks, or on a rank that is there."""
    return needs_job(now) if now.screen == "stacks" else needs_rank(now)
