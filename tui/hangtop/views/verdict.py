"""The verdict in full: evidence, other explanations, what to do, what could not be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.items import Item
from hangtop.spans import EMPTY, Line, labelled, line
from hangtop.views.common import confidence
from hangtop.views.overview import nothing_found, verdict_lines
from hangtop_core.fixes import SAID
from hangtop_core.rankset import fold
from hangtop_core.text import plural

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model import Job, Snapshot

PLACES = {"stacks": "stacks", "flight": "recorder", "gpu": "gpus", "log": "logs"}
"""Screen that shows what a source said; the rank's own screen for all others."""
GOALS = {
    "stacks": "  → 2 Stacks",
    "rank": "  → 3 Rank",
    "logs": "  → 8 Logs",
    "recorder": "  → 4 Recorder",
    "gpus": "  → 6 GPUs",
    "nodes": "  → 9 Nodes",
}
"""How these are called in the text."""

SHOWN_CULPRITS = 6


def full_lines(
    snapshot: Snapshot | None, job: Job | None, diagnosis: Diagnosis | None
) -> list[Line]:
    """The best verdict: summary, culprits, victims."""
    if snapshot is not None and job is None:
        return nothing_found(snapshot)
    if diagnosis is None or not diagnosis.verdicts:
        return verdict_lines(snapshot, job, diagnosis)
    best = diagnosis.verdicts[0]
    lines = [line((best.summary, "bold"))]
    for culprit in best.culprits[:SHOWN_CULPRITS]:
        rank = "?" if culprit.rank is None else str(culprit.rank)
        pid = "" if culprit.pid is None else f"  pid {culprit.pid}"
        where = f"  on {culprit.node}{pid}" if culprit.node else ""
        text = line((f"rank {rank}", "culprit"), where)
        lines.append(labelled("culprit", text))
    if len(best.culprits) > SHOWN_CULPRITS:
        rest = [c.rank for c in best.culprits[SHOWN_CULPRITS:] if c.rank is not None]
        lines.append(labelled("", f"and {plural(len(rest), 'rank')}: {fold(rest)}"))
    if best.victims:
        verb = "only waits" if len(best.victims) == 1 else "only wait"
        text = line(f"{plural(len(best.victims), 'rank')} {verb}: {fold(best.victims)}")
        lines.append(labelled("victims", text))
    return lines


def evidence_items(diagnosis: Diagnosis | None) -> list[Item]:
    """Evidence of the best verdict, in its order."""
    if diagnosis is None or not diagnosis.verdicts:
        return []
    items = []
    ranks = diagnosis.job is None or diagnosis.job.ranks_seen
    for place, seen in enumerate(diagnosis.verdicts[0].evidence):
        rank = "" if seen.rank is None else f"rank {seen.rank}"
        head = line(("✔ ", "good"), (f"{seen.source:<12}", "info"), f"{rank:<10}")
        about_node = seen.source == "network" and seen.rank is None
        goal = "nodes" if about_node else PLACES.get(seen.source, "rank")
        where = GOALS[goal]
        items.append(
            Item(
                key=f"{place}:{seen.source}",
                lines=(line(head, seen.text, (where if ranks else "", "dim")),),
                indent=24,
                copy=f"{seen.source} {rank} {seen.text}".replace("  ", " "),
                target=(goal, seen.rank) if ranks else None,
            )
        )
    return items


def other_lines(diagnosis: Diagnosis | None) -> list[Line]:
    """Every further verdict in a few lines, best first."""
    others = diagnosis.verdicts[1:] if diagnosis else ()
    if not others:
        return [line(("No other explanation fits what was seen.", "dim"))]
    lines: list[Line] = []
    for verdict in others:
        lines.append(line((verdict.cause, "bold"), "  ", confidence(verdict)))
        lines.append(line("    ", verdict.summary))
        seen = [line("    ", (f"{one.source}: {one.text}", "dim")) for one in verdict.evidence[:2]]
        lines += [*seen, EMPTY]
    return lines[:-1]


def step_items(diagnosis: Diagnosis | None) -> list[Item]:
    """Next steps of the best verdict, with the command that `y` copies."""
    if diagnosis is None or not diagnosis.verdicts:
        return []
    items = []
    for place, text in enumerate(diagnosis.verdicts[0].next_steps, 1):
        command = command_in(text)
        lines = [line((f"{place}  ", "bold"), text)]
        if command == text:
            lines = [line(lines[0], ("   y", "key"), (" copies", "dim"))]
        elif command:
            lines.append(line("   ", ("y", "key"), (" copies  ", "dim"), (command, "code")))
        items.append(Item(str(place), tuple(lines), 3, command or text))
    return items


COMMANDS = frozenset(
    {"cat", "cd", "df", "dmesg", "docker", "fuser", "gdb", "hangtop", "journalctl", "kill"}
    | {"killall", "ls", "lslocks", "lsof", "mount", "nc", "nvidia-smi", "ps", "py-spy", "python"}
    | {"python3", "scontrol", "ssh", "strace", "sudo", "sysctl", "tail", "timeout", "torchrun"}
    | {"cuda-gdb", "ibstat", "ip", "systemctl", "ulimit"}
)
"""Programs that a next step may name: what follows them is what `y` copies."""


def command_in(text: str) -> str | None:
    """The command in a step: between backticks, or after the last colon if it looks like one."""
    if text.startswith(SAID):
        return None
    if text.count("`") >= 2:
        return text.split("`")[1].strip() or None
    _, colon, rest = text.rpartition(": ")
    rest = rest.strip() if colon else text.strip()
    program, blank, _ = rest.partition(" ")
    return rest if blank and program.rpartition("/")[2] in COMMANDS else None


def blind_items(diagnosis: Diagnosis | None) -> list[Item]:
    """What could not be seen, why, and how to change that."""
    items = []
    for place, spot in enumerate(diagnosis.blind_spots if diagnosis else ()):
        many = "ranks" if len(spot.ranks) > 1 else "rank"
        who = f"{many} {fold(spot.ranks)}" if spot.ranks else ", ".join(spot.nodes)
        head = line(("? ", "warn"), (spot.what, "bold"), f"  {who}" if who else "", f": {spot.why}")
        lines = [head]
        if spot.fix:
            lines.append(line(("  fix  ", "label"), (spot.fix, "code")))
        command = command_in(spot.fix) if spot.fix else None
        items.append(Item(f"{place}:{spot.what}", tuple(lines), 7, command or spot.fix or None))
    return items
