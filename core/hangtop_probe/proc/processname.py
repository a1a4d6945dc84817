"""Names of processes and threads without secrets."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def masked(name: str) -> str:
    """Return the name, with what looks like a secret masked."""
    from ..secrets.mask import mask_name  # takes long to load, and the app begins without

    return mask_name(name)
