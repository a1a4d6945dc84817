"""Who is told what becomes of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.attach.connect.timing import Moment
    from hangtop_core.attach.wire.messages import Hello


Link = TypeVar("Link", contravariant=True)


class Listener(Protocol[Link]):
    """Who wants to know what becomes of a link."""

    def link_changed(self, link: Link, changes: Mapping[str, Any]) -> None:
        """Fields of `model.Node` have changed."""

    def link_ready(self, link: Link, hello: Hello, now: Moment) -> None:
        """A probe said hello: this is a new connection, nothing was asked of it yet."""
