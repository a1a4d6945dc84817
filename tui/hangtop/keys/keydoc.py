"""docs/keys.md, made from the registry of actions.

`python -m hangtop.keys.keydoc > docs/keys.md` writes it; a test checks that it is current.
"""

from __future__ import annotations

import sys

from hangtop.keys.actions import GROUPS, Action, keys_of, page_names
from hangtop.keys.keymap import ACTIONS
from hangtop.views.footer import FOOTERS

INTRODUCTION = """\
# Keys

Made from the registry of actions (`python -m hangtop.keys.keydoc > docs/keys.md`). In the app `?`
shows the same, with what is not possible at the moment and why.

Lower case acts on the rank or node under the cursor or on the marked ranks, upper case on all of
them. `Esc` goes one level up and never quits. What could touch a process beyond reading it shows
the exact command and asks before its first time; with `--readonly` it is refused. A shell (`!`) is
your own doing: it is never refused.
"""

FILTERS = """\
## Filters

Words are joined by *and*.

| word | shows rows |
|---|---|
| `3-7,12` | of these ranks |
| `state=stopped` | whose field is this; `!=` is not |
| `node~gpu` | whose field contains this |
| `idle>60` | whose number is larger; `<` smaller |
| `all_reduce` | with this text anywhere |
| `!all_reduce` | without it |

Fields of ranks: `rank`, `node`, `pid`, `state`, `cpu`, `idle`, `where`, `why`, `children`.

Fields of process groups on Recorder: `group`, `size`, `state`; of their collectives: `seq`, `op`,
`shape`, `state`; of the members of a group: `rank`, `node`, `joined`, `last`, `now`, `state`. A
rank set shows the groups and collectives that lack one of these ranks.

Fields of stacks: `frame`, `at`, `count` for ranks, `age` in seconds.

Fields on Rank, of open files: `fd`, `kind`, `target`; of threads: `name`, `state`, `wchan`,
`fd`, `target`; of children: `name`, `state`.

Fields of GPUs: `node`, `gpu`, `does`, `util`, `power`, `memory`, `temperature`, `ecc`, `xid`,
`trouble`.

Fields of streams on Logs: `rank`, `node`, `state` (first, root, timeout, cascade), `path`, `last`,
`size`; in the lines of a rank a text is searched.

Fields of nodes: `node`, `state`, `for` and `seen` in seconds, `latency` in milliseconds, `load` for
each CPU, `ranks`, `trouble`, `reason`, `user`, `python`, `arch`.
"""


def document() -> str:
    """Return the whole text of docs/keys.md."""
    parts = [INTRODUCTION]
    for group in GROUPS:
        actions = [action for action in ACTIONS if action.group == group]
        parts.append(f"## {group}\n\n| keys | what | where |\n|---|---|---|\n" + _rows(actions))
    parts.append(FILTERS)
    return "\n".join(parts)


def _rows(actions: list[Action]) -> str:
    return "".join(
        f"| {_keys(action)} | {_cell(action.help)}{_asks(action)} | {_where(action)} |\n"
        for action in actions
    )


def _keys(action: Action) -> str:
    return " ".join(f"`{_cell(key)}`" for key in keys_of(action).split(" "))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _asks(action: Action) -> str:
    return " (asks first)" if action.risk == "asks" else ""


def _where(action: Action) -> str:
    if not action.screens or len(action.screens) == len(FOOTERS):
        return "everywhere"
    return page_names(action.screens)


if __name__ == "__main__":
    sys.stdout.write(document())
