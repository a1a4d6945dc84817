"""What tests of commands share: a config file of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop.cli.config import config_path

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the config file is looked for; its folder is there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = config_path()
    assert path == tmp_path / "hangtop" / "config.toml"
    path.parent.mkdir()
    return path
