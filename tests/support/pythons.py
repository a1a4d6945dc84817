"""Other Pythons of this machine, as pyenv keeps them."""

from __future__ import annotations

from pathlib import Path


def python_of(version: str) -> Path | None:
    """The newest Python of a minor version, as `3.8`; None where there is none."""
    found = {
        int(path.parts[-3].rpartition(".")[2]): path
        for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
        if path.parts[-3].rpartition(".")[2].isdecimal()
    }
    return found[max(found)] if found else None
