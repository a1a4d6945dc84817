"""The place of a stack, in few enough words for a table cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.model.frames import WRAPPERS, is_library, library_run, place, plain_name, site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Frame


def doing(frames: Sequence[Frame]) -> tuple[str, str]:
    """Return the user's innermost frame and what it called: `train.py:41 step`, `all_reduce`.

    Folders are left out: cells are narrow, and Stacks shows the whole path.

    `frames` are innermost first. The call is the outermost library function that does more than
    pass the call on; it is empty where the user's own code runs.
    """
    at = site(frames)
    if at is None:
        return "", ""
    where = f"{place(at).rpartition('/')[2]} {plain_name(at.name)}"
    if is_library(at):
        return where, ""
    for frame in reversed(library_run(frames)):
        if plain_name(frame.name) not in WRAPPERS:
            return where, plain_name(frame.name)
    return where, ""
