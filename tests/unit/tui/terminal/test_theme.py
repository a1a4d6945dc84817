"""What roles are drawn with, on dark and on light grounds."""

from __future__ import annotations

import pytest

from hangtop.terminal.theme import LIGHT, ROLES

XTERM = {
    "red": (0xCD, 0, 0),
    "green": (0, 0xCD, 0),
    "yellow": (0xCD, 0xCD, 0),
    "blue": (0, 0, 0xEE),
    "magenta": (0xCD, 0, 0xCD),
    "cyan": (0, 0xCD, 0xCD),
}
"""xterm's own palette (its XTerm-col.ad), the brightest that is common."""


def contrast(colour: tuple[int, int, int]) -> float:
    """To white, from 1 to 21, after the Web Content Accessibility Guidelines 2.1."""
    parts = [value / 255 for value in colour]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_be_read_on_white(role: str) -> None:
    colour = LIGHT.get(role, ROLES[role]).color
    if colour is not None:
        assert contrast(XTERM[colour.name]) >= 4.5


def test_light_replaces_only_roles_that_there_are() -> None:
    assert set(LIGHT) <= set(ROLES)
    assert contrast(XTERM["yellow"]) < 2, "this is why"
