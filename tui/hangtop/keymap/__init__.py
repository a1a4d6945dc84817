"""The registry of everything a key can do, one module for each kind.

Bindings, the footer, the help screen, the `:` palette and docs/keys.md are all made from
`ACTIONS`, so they cannot disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.keymap.app import APP
from hangtop.keymap.arranging import ARRANGING
from hangtop.keymap.asking import ASKING
from hangtop.keymap.going import GOING
from hangtop.keymap.keeping import KEEPING
from hangtop.keymap.logs import LOG_ACTIONS
from hangtop.keymap.looking import LOOKING

if TYPE_CHECKING:
    from hangtop.actions import Action

ACTIONS: tuple[Action, ...] = (
    *GOING,
    *ARRANGING,
    *LOOKING,
    *ASKING,
    *KEEPING,
    *LOG_ACTIONS,
    *APP,
)

BY_ID = {action.id: action for action in ACTIONS}


def all_keys() -> list[str]:
    """Every key that does something, once."""
    return list(dict.fromkeys(key for action in ACTIONS for key in action.keys))


def find(key: str, screen: str) -> Action | None:
    """What a key does on a screen."""
    for action in ACTIONS:
        if key in action.keys and (not action.screens or screen in action.screens):
            return action
    return None


def elsewhere(key: str) -> Action | None:
    """What a key would do on some other screen, to say so."""
    return next((action for action in ACTIONS if key in action.keys), None)
