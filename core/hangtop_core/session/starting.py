"""Check of this machine's memory limits before hangtop starts."""

from __future__ import annotations

import resource

from hangtop_core.errors import StartError
from hangtop_core.text.clean import size

ADDRESS_SPACE = 1 << 30
"""Bytes that hangtop and its probe need each, mostly for stacks of threads. With less, threads fail
to start here and there, and their observations would be missing."""


def check_memory() -> None:
    """Check that the limit on address space leaves enough of it.

    Raises:
        StartError: the limit is too low.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise StartError(
            f"this shell allows {size(limit)} of address space, and hangtop needs "
            f"{size(ADDRESS_SPACE)}",
            f"Allow more, and try again: ulimit -v {ADDRESS_SPACE >> 10}",
        )
