"""Names of users."""

from __future__ import annotations

import pwd
from typing import TYPE_CHECKING, NoReturn

from hangtop_probe.node import permission

if TYPE_CHECKING:
    import pytest


def test_a_user_without_a_name_is_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A directory service that was down for a moment comes back."""
    asked = []

    def down(uid: int) -> NoReturn:
        asked.append(uid)
        raise KeyError(uid)

    monkeypatch.setattr(permission, "_NAMES", {})
    with monkeypatch.context() as patch:
        patch.setattr(pwd, "getpwuid", down)
        assert [permission.user_name(0) for _ in range(3)] == ["uid 0"] * 3
        assert asked == [0], "not at once again"
    later = permission.time.monotonic() + permission._AGAIN_S + 1.0
    monkeypatch.setattr(permission.time, "monotonic", lambda: later)
    assert permission.user_name(0) == pwd.getpwuid(0).pw_name
