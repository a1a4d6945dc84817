"""Options of commands whose output is shared with other people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_redaction(parser: argparse.ArgumentParser, where: str = "what is printed") -> None:
    """Add `--redact-paths` and `--redact-hosts`; ``where`` is the scope of stable names."""
    group = parser.add_argument_group("to hand it on", "Secrets are masked in any case.")
    group.add_argument(
        "--redact-paths",
        action="store_true",
        help=f"give folders other names, the same all over {where}; files of Python keep theirs",
    )
    group.add_argument(
        "--redact-hosts",
        action="store_true",
        help=f"give nodes and addresses other names, the same all over {where}",
    )
