"""Nouns of stacks: a frame as a row, and the stacks of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

if TYPE_CHECKING:
    from ..wire.requests import Message

Row = List[Any]
"""A frame: name, file, short, line, native, source, and what it stands in (`sources.around`)."""


class Sample(NamedTuple):
    """The stacks of one process, or why there are none."""

    threads: List[Message]
    stacks: Dict[str, List[Row]]
    failure: Optional[Message] = None
