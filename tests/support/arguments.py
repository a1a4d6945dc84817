"""Command lines as commands get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.main import build_parser

if TYPE_CHECKING:
    import argparse


def options_of(*words: str) -> argparse.Namespace:
    """What a command line says, with all that is not said, and what the config file says."""
    return complete(build_parser().parse_args(words))
