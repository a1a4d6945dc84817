"""Process groups and their collectives, as flight recorders show them."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import EMPTY, Line, line
from hangtop.views.common import span
from hangtop_core.analysis.flight.sequences import NumberLine
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop.keys import query
    from hangtop.source.recordings import Seen
    from hangtop_core.analysis.flight.groups import GroupLine
    from hangtop_core.model.recorder.trace import Call

STAGE_ROLES: dict[str, str] = {
    "missing": "bad",
    "mismatch": "bad",
    "send waits": "bad",
    "recv waits": "bad",
    "no data": "warn",
    "behind": "warn",
    "partly over": "bad",
    "not through": "bad",
    "done": "good",
    "unused": "dim",
}
"""Role of each stage. `missing`: ranks have not joined. `behind`: all ranks have joined, and one
still has an older operation to complete.
"""

_TYPES = {
    "BFloat16": "bf16",
    "Half": "f16",
    "Float": "f32",
    "Double": "f64",
    "Float8_e4m3fn": "f8e4m3",
    "Float8_e5m2": "f8e5m2",
    "Long": "i64",
    "Int": "i32",
    "Short": "i16",
    "Char": "i8",
    "Byte": "u8",
    "Bool": "bool",
}
"""Short names of the data types that the recorder writes."""


def ranks_of(ranks: Sequence[int]) -> str:
    """Return `1 (3121)`: how many ranks and which, in short."""
    return f"{len(ranks)}  ({fold(ranks)})" if ranks else "0"


# Process groups


def _not_joined(group: GroupLine) -> Line:
    operation = group.operation
    if operation is None:
        return line("")
    if operation.missing:
        return line((ranks_of(operation.missing), "culprit" if group.first else ""))
    if operation.mismatched:
        return line((f"differ: {fold(operation.mismatched)}", "culprit" if group.first else ""))
    if operation.absent or operation.unsure or operation.perhaps:
        return line(
            (f"? {fold((*operation.absent, *operation.unsure, *operation.perhaps))}", "warn")
        )
    return line("0")


def _waits_on(group: GroupLine) -> Line:
    mark = line(("◀ first cause", "culprit")) if group.first else EMPTY
    if not group.behind:
        return mark
    circle = group.behind[-1] == ""
    text = " → ".join(label for label in group.behind if label)
    text += " ↺ a circle" if circle and text else "a circle" if circle else ""
    return line(text, "  " if mark else "", mark)


def _size(group: GroupLine) -> Line:
    """Return the size of a group; `4+` where it may be larger, as members are not recorded."""
    return line(str(group.size), ("" if group.recorded or group.uid == "0" else "+", "dim"))


def _number(group: GroupLine, value: int | None) -> Line:
    if not value and group.sends:
        return line("-")
    return line(("?", "warn")) if value is None else line(str(value))


GROUP_COLUMNS: tuple[Column[GroupLine], ...] = (
    Column("group", "PG", lambda group: line((group.label, "bold" if group.first else "")),
           lambda group: group.label, minimum=10, maximum=36, flex=True),
    Column("size", "SIZE", _size,
           lambda group: group.size, align="right", drop=4),
    Column("enqueued", "LAST ENQ", lambda group: _number(group, group.newest),
           lambda group: -(group.newest or 0), align="right", drop=2),
    Column("done", "LAST DONE", lambda group: _number(group, group.done),
           lambda group: -(group.done or 0), align="right", drop=3),
    Column("missing", "NOT JOINED", _not_joined,
           lambda group: -len(group.operation.missing if group.operation else ()),
           minimum=8, maximum=30, flex=True),
    Column("state", "STATE", lambda group: line((group.stage, STAGE_ROLES[group.stage])),
           lambda group: group.stage, maximum=12),
    Column("behind", "WAITS ON", _waits_on, lambda group: group.behind, minimum=13, maximum=60,
           flex=True, drop=1),
)  # fmt: skip


def group_counts(groups: Sequence[GroupLine], *, short: bool) -> Line:
    """Return `1 stalled, 3 waiting, 4 idle of 8 groups`; in short how many wait."""
    begin = sum(group.first for group in groups)
    behind = sum(group.stalled for group in groups) - begin
    if short:
        role = "bad" if begin else ""
        return line((f"{begin + behind} of {plural(len(groups), 'group')}", role), " stalled")
    idle = len(groups) - begin - behind
    parts = ((f"{begin} stalled", "bad" if begin else ""), (f", {behind} waiting, {idle} idle", ""))
    return line(*parts, (f" of {plural(len(groups), 'group')}", "label"))


# Collectives by sequence number


def shape(call: Call | None) -> str:
    """Return `[8192,1024] bf16`, of the inputs, else of the outputs."""
    if call is None:
        return "?"
    sizes = call.inputs if call.inputs.strip("[]") else call.outputs
    sizes = sizes.replace(" ", "")
    if sizes.startswith("[[") and sizes.endswith("]]"):
        inner = sizes[1:-1].split("],[")
        sizes = sizes[1:-1] if len(inner) == 1 else f"{inner[0]}] and {len(inner) - 1} more"
    names = dict.fromkeys(re.findall(r"\w+", call.input_types or call.output_types))
    return clean(" ".join((sizes, *(_TYPES.get(name, name) for name in names))).strip(), 120)


def operation_name(number: NumberLine) -> str:
    """Return `all_reduce`, or `send 0 -> 1` with global ranks."""
    if number.call is None:
        return "?"
    name = clean(number.call.op, 80)
    if number.seq is None and number.operation is not None:
        node = number.operation.node
        return f"{name} {node.source} → {node.target}"
    return _either(name, *(clean(call.op, 80) for call, _ in number.others))


def _either(*texts: str) -> str:
    """Return `all_reduce / broadcast`: operations that ranks disagree about."""
    distinct = list(dict.fromkeys(texts))
    return " / ".join((*distinct[:2], "…") if len(distinct) > 2 else distinct)


def shapes(number: NumberLine) -> str:
    """Return the shapes and types of the operations with a sequence number."""
    return _either(shape(number.call), *(shape(call) for call, _ in number.others))


def number_state(number: NumberLine) -> tuple[str, str]:
    """Return the progress of a sequence number, and the role of the word."""
    if number.others:
        return "mismatch", "bad"
    recorded = number.size - number.unknown
    if number.stage is not None:
        return number.stage, STAGE_ROLES[number.stage]
    if number.seq is not None and number.done >= recorded > 0:
        return "completed", "good"
    if number.enqueued < recorded:
        return "lacks ranks", "warn"
    return "queued", "dim"


def _share(count: int, number: NumberLine) -> Line:
    role = "" if count >= number.size else "warn"
    return line(
        (f"{count}/{number.size}", role), (f" ?{number.unknown}" if number.unknown else "", "warn")
    )


def moment(at_ns: int) -> str:
    """Return `10:29:29.240`, in the user's time zone."""
    if not at_ns:
        return "-"
    whole = time.strftime("%H:%M:%S", time.localtime(at_ns // 10**9))
    return f"{whole}.{at_ns // 10**6 % 1000:03d}"


def _late(number: NumberLine) -> Line:
    if not number.first_ns or number.enqueued < 2:
        return EMPTY
    late = (number.last_ns - number.first_ns) / 1e9
    return line((f"+{late:.3f}" if late < 60 else f"+{span(late)}", "dim"))


NUMBER_COLUMNS: tuple[Column[NumberLine], ...] = (
    Column("seq", "SEQ", lambda row: line("-" if row.seq is None else str(row.seq)),
           lambda row: -1 if row.seq is None else row.seq, align="right"),
    Column("op", "OP", lambda row: line(operation_name(row)), operation_name, minimum=10,
           maximum=30, flex=True),
    Column("shape", "SHAPE / DTYPE", lambda row: line(shapes(row)),
           shapes, minimum=16, maximum=34, flex=True, drop=1),
    Column("enqueued", "ENQUEUED BY", lambda row: _share(row.enqueued, row),
           lambda row: row.enqueued, align="right"),
    Column("done", "DONE BY", lambda row: _share(row.done, row), lambda row: row.done,
           align="right"),
    Column("when", "FIRST ENQ", lambda row: line(moment(row.first_ns)), lambda row: row.first_ns,
           drop=2),
    Column("late", "→ LAST", _late, lambda row: row.first_ns - row.last_ns, align="right", drop=3),
    Column("state", "STATE", lambda row: line(number_state(row)),
           lambda row: number_state(row)[0], maximum=12),
)  # fmt: skip


def numbers_note(numbers: Sequence[NumberLine], *, short: bool) -> Line:
    """Return mismatches, waiting sends, and the time span of the recordings."""
    differ = sum(bool(number.others) for number in numbers)
    sends = sum(number.seq is None for number in numbers)
    times = [number.first_ns for number in numbers if number.first_ns]
    parts = [
        ("mismatches ", "label"), (str(differ or "none"), "bad" if differ else ""),
        ("  sends that wait " if not short else "  sends ", "label"),
        (str(sends or "none"), "bad" if sends else ""),
    ]  # fmt: skip
    if len(times) > 1:
        covers = max((max(times) - min(times)) / 1e9, 0.0)
        parts += [("  covers ", "label"), (span(covers) if covers >= 1 else "under 1 s", "")]
    return line(*parts)


def countdown_line(recorded: Seen, now: float) -> Line:
    """Return `the first timeout in about 6:48`, or that it has passed; empty when not known."""
    countdown = recorded.countdown
    if countdown is None:
        return EMPTY
    left = countdown.at - now
    watchdog = "gloo" if countdown.backend == "gloo" else "the watchdog"
    if left > 0:
        return line((f"{watchdog} gives up in about ", "label"), (span(left), "warn"))
    return line((f"{watchdog} should have given up {span(-left)} ago", "warn"))


def title_of(number: NumberLine) -> str:
    """Return `all_reduce #17`, `send 0 → 1`."""
    name = operation_name(number)
    return name if number.seq is None else f"{name} #{number.seq}"


def facts(item: GroupLine | NumberLine) -> tuple[query.Fields, frozenset[int]]:
    """Return the fields of a group or a sequence number, for the filter, and its missing ranks."""
    operation = item.operation
    ranks = frozenset(
        (*operation.missing, *operation.mismatched, *operation.absent) if operation else ()
    )
    if isinstance(item, NumberLine):
        fields: dict[str, str | float | None] = {
            "seq": None if item.seq is None else float(item.seq),
            "op": operation_name(item),
            "shape": shapes(item),
            "state": number_state(item)[0],
        }
        return fields, ranks
    return {"group": item.label, "size": float(item.size), "state": item.stage}, ranks
