"""The map from keys to actions: `keytable`, with the user's own keys."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hangtop.keys.actions import PAIRED, key_name
from hangtop.keys.keytable import ACTIONS as ACTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop.keys.actions import Action

KEPT = {"leave": "ctrl+c"}
"""Keys that always work, whatever the file says: leaving the program must be easy."""


class Keymap:
    """The map from keys to actions.

    Args:
        own: keys by action id, in Textual's names (`config.keys` reads them from a file). They take
            a key away from any other action where both would work; an empty tuple is no key.

    Raises:
        ValueError: an action is unknown, or one key has two meanings on one screen.
    """

    def __init__(self, own: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> None:
        _check_names(own)
        chosen = [replace(action, keys=own[action.id]) for action in ACTIONS if action.id in own]
        _check_shared(chosen)
        self.actions = tuple(_with_own(action, own, chosen) for action in ACTIONS)
        self.by_id = {action.id: action for action in self.actions}
        self._changed = frozenset(
            new.id for new, old in zip(self.actions, ACTIONS, strict=True) if new.keys != old.keys
        )

    def all_keys(self) -> list[str]:
        """Return every key that does something, once."""
        return list(dict.fromkeys(key for action in self.actions for key in action.keys))

    def names(self) -> dict[str, str]:
        """Return the first key of every action that has one, as people write it."""
        return {action.id: key_name(action.keys[0]) for action in self.actions if action.keys}

    def find(self, key: str, screen: str) -> Action | None:
        """Return the action of a key on a screen."""
        for action in self.actions:
            if key in action.keys and (not action.screens or screen in action.screens):
                return action
        return None

    def elsewhere(self, key: str) -> Action | None:
        """Return the action of a key on some other screen, to say so."""
        return next((action for action in self.actions if key in action.keys), None)

    def shown(self, name: str) -> str:
        """Return the key of an action as the footer shows it; two where they belong together."""
        if name in PAIRED and not self._changed:
            return PAIRED[name]
        keys = self.by_id[name].keys
        return key_name(keys[0]) if keys else ""


def _check_names(own: Mapping[str, tuple[str, ...]]) -> None:
    """Raise ValueError for an unknown action, and for a key that always belongs to another."""
    ids = {action.id for action in ACTIONS}
    for name, keys in own.items():
        if name not in ids:
            raise ValueError(f"{name!r} is no action")
        for kept, key in KEPT.items():
            if key in keys and name != kept:
                raise ValueError(f"{key_name(key)} always does {kept!r}")


def _check_shared(actions: list[Action]) -> None:
    """Raise ValueError where two actions have one key on the same screen."""
    for index, action in enumerate(actions):
        for earlier in actions[:index]:
            if shared := _shared(action, earlier):
                raise ValueError(f"{key_name(shared[0])} is given to {earlier.id} and {action.id}")


def _with_own(action: Action, own: Mapping[str, tuple[str, ...]], chosen: list[Action]) -> Action:
    keys = own.get(action.id)
    if keys is None:
        taken = {key for candidate in chosen for key in _shared(action, candidate)}
        keys = tuple(key for key in action.keys if key not in taken)
    if action.id in KEPT and KEPT[action.id] not in keys:
        keys = (*keys, KEPT[action.id])
    return action if keys == action.keys else replace(action, keys=keys)


def _shared(first: Action, second: Action) -> list[str]:
    """Return the keys that two actions share on the same screen."""
    together = not first.screens or not second.screens or set(first.screens) & set(second.screens)
    return [key for key in first.keys if key in second.keys] if together else []
