"""`hangtop doctor`: what hangtop can see on each node, and how to fix what it cannot."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Any

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.targets import launchers
from hangtop.cli.output import redacting
from hangtop.cli.output.output import DIM, GREEN, RED, YELLOW, StatusLine, has_colour, report_width
from hangtop_core.analysis.ladder.climb import climb
from hangtop_core.analysis.ladder.fold import Group, fold
from hangtop_core.analysis.ladder.rung import Ladder
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.reach import explore
from hangtop_core.diagnosis import to_json
from hangtop_core.report.diagnosis import wrap
from hangtop_core.session.examine import clean_all, examine
from hangtop_core.session.session import Options, Session
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, plural, shorten, size
from hangtop_core.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.ladder.rung import Rung
    from hangtop_core.model.node.check import Cleaned

HIDDEN, UNSEEN = 3, 4
"""Exit status when a node responds but hides its ranks, and when one does not respond."""
LABELS = {"not-applicable": "n/a", "not-reached": "-"}
COLOURS = {"ok": GREEN, "warning": YELLOW, "missing": RED, "n/a": DIM, "-": DIM}
_NAME = 15
_LABEL = 7
_INDENT = 2 + _LABEL + 2 + _NAME + 2


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments)
    targets = launchers(arguments, watch=False)
    renamer = redacting.of(arguments)
    options = Options(interval=0.5, watch=False)

    def show_progress(waiting: Sequence[str]) -> None:
        if text := progress(len(targets), waiting):
            line.show(text)

    with StatusLine() as line, Session(options, diagnose, targets) as session:
        if arguments.clean:
            cleaned, failed = clean_all(session, show_progress)
            line.clear()
            cleaned = {renamer.text(name): renamer.one(result) for name, result in cleaned.items()}
            return tell_cleaned(cleaned, renamer.data(failed), arguments.json)
        names = [target.node for target in targets if target.via == "ssh"]
        routes = explore(names, arguments.user, arguments.connect_timeout)
        results = examine(session, targets, routes, show_progress)
        line.clear()
        # Before the session ends, which waits a moment for nodes that do not respond.
        ladders = [climb(result) for result in results]
        if renamer.names:
            ladders = renamer.several(ladders, Ladder)
        return tell(ladders, arguments.json)


def tell(ladders: Sequence[Ladder], as_json: bool) -> int:
    """Print the result; return the exit status."""
    status = exit_status(ladders)
    if as_json:
        print(to_json(document(ladders, status)).decode(), flush=True)
    else:
        print(coloured(report(ladders, report_width())), end="", flush=True)
    return status


def exit_status(ladders: Sequence[Ladder]) -> int:
    """Return the worst exit status of all nodes."""
    if any(not ladder.answered for ladder in ladders):
        return UNSEEN
    return HIDDEN if any(ladder.failing for ladder in ladders) else 0


def document(ladders: Sequence[Ladder], status: int) -> dict[str, Any]:
    """Return the whole result, for programs (schema `hangtop.doctor/1`, docs/doctor.md)."""
    return {
        "schema": "hangtop.doctor/1",
        "hangtop": __version__,
        "at": round(time.time(), 3),
        "ok": status == 0,
        "exit_status": status,
        "nodes": [
            {
                "node": ladder.node,
                "ok": not ladder.failing,
                "answered": ladder.answered,
                "rungs": [
                    {
                        "name": rung.name,
                        "state": rung.state,
                        "matters": rung.matters,
                        "text": rung.text,
                        "detail": rung.detail,
                        "fix": rung.fix,
                    }
                    for rung in ladder.rungs
                ],
            }
            for ladder in ladders
        ],
    }


def report(ladders: Sequence[Ladder], columns: int) -> str:
    """Return the ladders as text: equal nodes together; later groups only with differences."""
    groups = fold(ladders)
    lines: list[str] = []
    if len(ladders) > 1:
        lines += [*textwrap.wrap(summary(ladders), columns), ""]
    for index, group in enumerate(groups):
        lines += [""] if index else []
        lines += group_lines(group, groups[0] if index else None, columns)
    return "\n".join(lines) + "\n"


def summary(ladders: Sequence[Ladder]) -> str:
    """Return how many nodes can be observed."""
    unseen = sum(not ladder.answered for ladder in ladders)
    hidden = sum(bool(ladder.answered and ladder.failing) for ladder in ladders)
    parts = [f"{len(ladders) - unseen - hidden} can be observed"]
    parts += [f"{hidden} answer but hide their ranks"] if hidden else []
    parts += [f"{unseen} cannot be observed at all"] if unseen else []
    return f"{plural(len(ladders), 'node')}: {', '.join(parts)}"


def group_lines(group: Group, first: Group | None, columns: int) -> Iterator[str]:
    """Yield the lines of one group; after the first group only the differences from it."""
    yield from textwrap.wrap(
        f"{nodesets.fold(group.nodes)}: {standing(group)}",
        columns,
        subsequent_indent="  ",
    )
    rungs = group.rungs if first is None else group.differences(first)
    for rung in rungs:
        if rung.state != "not-reached" or rung.text:
            yield from rung_lines(rung, columns)
    unreached = [rung.name for rung in rungs if rung.state == "not-reached" and not rung.text]
    if unreached:
        yield from _row("-", "not reached", ", ".join(unreached), columns)
    if first is not None and len(rungs) < len(group.rungs):
        name = nodesets.fold(first.nodes)
        yield f"  the rest as on {shorten(name, columns - 18)}"


def standing(group: Group) -> str:
    """Return the overall result of a group's ladder."""
    lacks = [rung.name for rung in group.rungs if rung.fails]
    if not lacks:
        return "all that matters is there"
    answered = any(rung.name == "probe" and rung.state == "ok" for rung in group.rungs)
    return f"{'ranks are hidden' if answered else 'cannot be observed'} ({', '.join(lacks)})"


def rung_lines(rung: Rung, columns: int) -> Iterator[str]:
    """Yield one rung, wrapped, with its fix below it."""
    text = rung.text + (f" ({rung.detail})" if rung.detail else "")
    yield from _row(LABELS.get(rung.state, rung.state), rung.name, text, columns)
    if rung.fix:
        yield from _wrapped(f"fix: {rung.fix}", " " * _INDENT, columns, " " * (_INDENT + 5))


def _row(label: str, name: str, text: str, columns: int) -> list[str]:
    head = f"  {label:<{_LABEL}}  {name:<{_NAME}}  "
    return _wrapped(text, head, columns, " " * _INDENT)


def _wrapped(text: str, head: str, columns: int, indent: str) -> list[str]:
    return wrap(text, max(columns, 60), head, indent) or [head.rstrip()]


def coloured(text: str) -> str:
    """Return the report with its states in colour, where colour is used."""
    return "".join(map(_mark, text.splitlines(keepends=True))) if has_colour() else text


def _mark(line: str) -> str:
    label = line[2 : 2 + _LABEL].strip()
    if not line.startswith("  ") or label not in COLOURS:
        return line
    return f"  \x1b[{COLOURS[label]}m{line[2 : 2 + _LABEL]}\x1b[0m{line[2 + _LABEL :]}"


def tell_cleaned(cleaned: dict[str, Cleaned], failed: dict[str, str], as_json: bool) -> int:
    """Print what was removed; return the exit status."""
    left = any(result.left for result in cleaned.values())
    status = UNSEEN if failed else HIDDEN if left else 0
    if as_json:
        nodes = [
            {"node": name, "removed_bytes": result.bytes, **_cleaned_data(result), "failed": None}
            for name, result in cleaned.items()
        ]
        nodes += [{"node": name, "failed": why} for name, why in failed.items()]
        data = {"schema": "hangtop.doctor.clean/1", "exit_status": status, "nodes": nodes}
        print(to_json(data).decode())
        return status
    texts: dict[str, list[str]] = {}
    for name, result in cleaned.items():
        texts.setdefault(cleaned_text(result), []).append(name)
    for name, why in failed.items():
        texts.setdefault(f"not reached: {clean(why)}", []).append(name)
    for text, names in texts.items():
        print(f"{nodesets.fold(names)}: {text}")
    return status


def _cleaned_data(cleaned: Cleaned) -> dict[str, Any]:
    names = ("path", "removed", "left", "why", "rooms")
    return {name: getattr(cleaned, name) for name in names}


def cleaned_text(cleaned: Cleaned) -> str:
    """Return what was removed on one node, in words."""
    path = clean(cleaned.path or "", 200)
    text = f"removed {size(cleaned.bytes)} from {path}" if cleaned.removed else "nothing to remove"
    if cleaned.left:
        left = ", ".join(clean(path, 200) for path in cleaned.left)
        text += f"; left {left}: {clean(cleaned.why or 'not removed', 200)}"
    elif cleaned.why and not cleaned.removed:
        text += f": {clean(cleaned.why, 200)}"
    if cleaned.rooms:
        rooms = plural(cleaned.rooms, "directory", "directories")
        text += f"; removed {rooms} of killed steps from /tmp"
    return text


def progress(count: int, waiting: Sequence[str]) -> str:
    """Return which nodes are still awaited; empty when none is."""
    if not waiting:
        return ""
    done = f"{count - len(waiting)} of {plural(count, 'node')} done"
    return shorten(f"{done}, waiting for {nodesets.fold(waiting)}", 78)
