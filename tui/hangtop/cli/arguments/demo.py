"""Arguments of `hangtop demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing, add_screen

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands


def add_demo(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop demo`."""
    parser = commands.add_parser(
        "demo",
        help="start a small job that really hangs, and look at it",
        description="Start a small training job on this machine that really hangs, and open "
        "hangtop on it. The job ends with hangtop, however hangtop ends. Needs torch.",
        epilog="examples:\n"
        "  hangtop demo                     a rank skips a collective\n"
        "  hangtop demo --list              all scenarios\n"
        "  hangtop demo lock --diagnose     print the verdict instead of opening the app",
        formatter_class=Formatter,
    )
    parser.add_argument("scenario", nargs="?", default="skip", help="which one (default: skip)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the scenarios and exit")
    what.add_argument("--diagnose", action="store_true", help="run `hangtop diagnose` on the job")
    what.add_argument("--dump", action="store_true", help="run `hangtop dump` on the job")
    parser.add_argument(
        "--json",
        action="store_true",
        help="with --list: schema hangtop.scenarios/1; else as diagnose and dump print it",
    )
    add_observing(parser, choose=False)
    add_screen(parser)
