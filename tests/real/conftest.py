"""What real tests share: a probe of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.probe_client import ProbeClient

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def probe() -> Iterator[ProbeClient]:
    """A probe that was asked nothing yet."""
    with ProbeClient() as client:
        yield client
