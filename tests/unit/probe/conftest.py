"""What tests of the probe share: one that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.probe_client import ProbeClient

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def probe() -> Iterator[ProbeClient]:
    """A probe that has said hello."""
    with ProbeClient() as client:
        client.hello()
        yield client
