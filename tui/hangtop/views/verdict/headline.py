"""Lines 1 and 2 of every screen: job, state, timeout, data age, nodes, live or paused; tabs."""

from __future__ import annotations

import math
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from hangtop.keys.actions import page_names
from hangtop.keys.keytable import PAGES
from hangtop.source.dump_files import SCREENS
from hangtop.terminal.spans import EMPTY, Line, cells, crop, line
from hangtop.views.common import clock, day, span
from hangtop.views.nodes.nodes import node_role
from hangtop.views.verdict.judged import state_line
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.report.diagnosis import attempt_text
from hangtop_core.text import node_sets
from hangtop_core.text.clean import plural, shorten_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop.keys.keymap import Keymap
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Node, Snapshot

NAMES_CELLS = 24
"""Longest list of failing node names in cells; longer ones are replaced by a count."""

_STATE = attrgetter("state")

Piece = tuple[int, Line]
"""Drop priority of a piece (0 never goes) and the piece."""


def headline(
    snapshot: Snapshot | None,
    job: Job | None,
    diagnosis: Diagnosis | None,
    *,
    now: float,
    paused: bool,
    live: bool,
    width: int,
    captured: bool = False,
    pause: float = 1.0,
) -> Line:
    """Return the headline, fitted to `width` by leaving out what matters least.

    Snapshots arrive at least every `pause` seconds, and each stays valid until the next.
    """
    left: list[Piece] = [(0, line((" hangtop ", "brand")))]
    right: list[Piece] = []
    if snapshot is None:
        left.append((0, line(("○ CONNECTING", "info"))))
    else:
        files = not (captured or snapshot.nodes)
        left += _dumps(job, diagnosis) if job is not None and files else _job(job, snapshot)
        answers = any(node.state in OBSERVED for node in snapshot.nodes)
        silent = line(("○ NO ANSWER", "bad"))
        behind = now - snapshot.at if live and not paused else 0.0
        since = behind if behind > 1.0 else 0.0  # smaller differences are not worth a repaint
        left.append((0, state_line(diagnosis, job, since) if job or answers else silent))
        if diagnosis is not None:
            left += _attempt_and_timeout(diagnosis, since)
        right += _right(snapshot, now, paused, live, captured, pause)
    return _fitted(left, right, width)


def _attempt_and_timeout(diagnosis: Diagnosis, since: float) -> Iterator[Piece]:
    """Yield which attempt runs, and when the first operation times out."""
    attempt = diagnosis.attempt
    if attempt is not None:
        again = attempt.number > 1
        text = (attempt_text(attempt), "warn" if again else "label")
        yield 2 if again else 5, line(text)
    if diagnosis.watchdog_in_s is not None:
        yield 2, _timeout(diagnosis.watchdog_in_s - since)


def _timeout(seconds: float) -> Line:
    """Return the estimate of when the first operation times out; gloo has no such watchdog."""
    if seconds <= 0:
        return line(("timeout ", "label"), ("overdue", "warn"))
    return line(("timeout in about ", "label"), span(seconds))


def _job(job: Job | None, snapshot: Snapshot) -> list[Piece]:
    if job is None:
        return []
    size = job.world_size or len(job.ranks)
    count = plural(size, "rank")
    if job.world_size and len(job.ranks) < job.world_size:
        count = f"{len(job.ranks)} of {count}"
    nodes = len(job.nodes) or len(snapshot.nodes)
    return [
        (3, line(("job ", "label"), (job.name or job.key, "bold"))),
        (1, line(count)),
        (5, line(plural(nodes, "node"))),
    ]


def _dumps(job: Job, diagnosis: Diagnosis | None) -> list[Piece]:
    """Return the pieces for a job that is known from dump files only."""
    dumped = len(diagnosis.job.ranks_seen) if diagnosis is not None and diagnosis.job else 0
    count = f"dumps of {dumped} of {plural(job.world_size or 0, 'rank')}"
    return [(3, line((shorten_path(job.name, NAMES_CELLS), "bold"))), (1, line(count))]


def _right(
    snapshot: Snapshot, now: float, paused: bool, live: bool, captured: bool, pause: float
) -> list[Piece]:
    behind = max(now - snapshot.at, 0.0)
    states = Counter(map(_STATE, snapshot.nodes))  # runs every second, over a thousand nodes
    answered = sum(states[state] for state in OBSERVED)
    total = len(snapshot.nodes)
    if not live and not total and not captured:
        return [(1, line(f"as of {clock(snapshot.at)}")), (0, line("■ files"))]
    nodes = line((f"{answered}/{total}", "" if answered == total else "bad"), (" nodes", "label"))
    failing = [(6, _failing(snapshot.nodes))] if answered < total or states["slow"] else []
    if paused:
        when = line((f"as of {clock(snapshot.at)} (-{span(behind)})", "warn"))
        return [(1, when), *failing, (4, nodes), (0, line(("‖ paused", "warn")))]
    if not live:
        when = line(f"as of {day(snapshot.at)} {clock(snapshot.at)}")
        what = "■ capture" if captured else "■ recording"
        return [(1, when), *failing, (4, nodes), (0, line(what))]
    # Rounded up: a monitor that is on time then always shows 1 s, and repaints nothing.
    late = math.ceil(behind) >= pause + 2
    age = line(("age ", "label"), (span(max(math.ceil(behind), 1)), "warn" if late else ""))
    return [(4, age), *failing, (4, nodes), (0, line(("▶ live", "good")))]


def _failing(nodes: Sequence[Node]) -> Line:
    """Return the nodes that do not respond: `gpu[03-04] lost`; several states as a count."""
    states: dict[str, list[str]] = {}
    for node in nodes:
        if node.state != "ready":
            states.setdefault(node.state, []).append(node.name)
    worst = sorted(states, key=lambda state: (state == "connecting", state == "slow"))
    names = states[worst[0]]
    listed = node_sets.fold(names)
    if len(listed) > NAMES_CELLS:
        listed = f"{len(names)} nodes"
    remaining = sum(len(states[state]) for state in worst[1:])
    more = (f" and {remaining} more", "dim") if remaining else ("", "")
    return line((f"{listed} {worst[0]}", node_role(worst[0])), more)


def _fitted(left: list[Piece], right: list[Piece], width: int) -> Line:
    gap = line("  ")

    def joined(pieces: Sequence[Piece]) -> Line:
        out: Line = EMPTY
        for _, piece in pieces:
            out = (*out, *(gap if out else EMPTY), *piece)
        return out

    while cells(joined(left)) + cells(joined(right)) + 2 > width:
        going = max((*left, *right), key=lambda piece: piece[0])
        if going[0] == 0:
            break
        (left if going in left else right).remove(going)
    start, end = joined(left), joined(right)
    blanks = width - cells(start) - cells(end) - 1
    if blanks < 1:
        return crop(start, width)
    return (*start, *line(" " * blanks), *end, *line(" "))


def tabs(current: str, keymap: Keymap, width: int, *, files: bool) -> Line:
    """Return line 2: the screens, each by its key; dump files have only a few.

    Where the titles do not fit, only the current screen has one.
    """
    names = (page[1] for page in PAGES)
    shown = [
        (keymap.shown(name), name, page_names([name]))
        for name in names
        if not files or name in SCREENS
    ]
    wide = _tabs(shown, current, " ", all_titles=True)
    if cells(wide) <= width:
        return wide
    tight = _tabs(shown, current, "", all_titles=True)
    if cells(tight) <= width:
        return tight
    return _tabs(shown, current, " ", all_titles=False)


def _tabs(
    shown: Sequence[tuple[str, str, str]], current: str, gap: str, *, all_titles: bool
) -> Line:
    out: Line = line(" ")
    for key, name, title in shown:
        if name == current:
            out = (*out, *line((f" {key} {title} ", "tab"), gap))
        else:
            out = (*out, *line((f" {key} ", "key"), f"{title} " if all_titles else "", gap))
    return out
