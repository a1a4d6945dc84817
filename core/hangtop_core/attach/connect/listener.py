"""The receiver of a link's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.attach.connect.timing import Moment
    from hangtop_core.attach.wire.messages import Hello


Link = TypeVar("Link", contravariant=True)


class Listener(Protocol[Link]):
    """The receiver of a link's events."""

    def link_changed(self, link: Link, changes: Mapping[str, Any]) -> None:
        """Handle changed fields of `model.Node`."""

    def link_ready(self, link: Link, hello: Hello, now: Moment) -> None:
        """Handle the hello of a probe: the connection is new, and has no requests yet."""
