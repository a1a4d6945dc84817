"""`hangtop demo`: start a job that really hangs, and open hangtop on it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hangtop.app import prepare
from hangtop.cli.output.output import StatusLine
from hangtop.demo.gallery import BY_NAME, GALLERY
from hangtop.demo.runner import Demo, DemoError
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import HangtopError, UsageError
from hangtop_core.version import __version__


class DemoFailedError(HangtopError):
    """The demo job did not start."""

    HELP = "`hangtop demo --list` shows the other scenarios."


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status of what was run on the job."""
    if arguments.list:
        print(to_json(document()).decode() if arguments.json else listing())
        return 0
    if arguments.json and not (arguments.diagnose or arguments.dump):
        raise UsageError("--json goes with --list, --diagnose or --dump")
    if arguments.scenario not in BY_NAME:
        raise UsageError(f"there is no scenario {arguments.scenario!r}; see hangtop demo --list")
    scenario = BY_NAME[arguments.scenario]
    if not (arguments.diagnose or arguments.dump):
        prepare()  # before starting a job that could not be shown
    try:
        with Demo(scenario) as demo:
            print(f"{scenario.name}: {scenario.description}", file=sys.stderr)
            with StatusLine() as status:
                status.show("starting the job; it hangs in a few seconds ...")
                demo.wait_until_hung()
            return look(arguments, demo)
    except DemoError as error:
        raise DemoFailedError(str(error)) from error


def look(arguments: argparse.Namespace, demo: Demo) -> int:
    """Open the app on the job, or run the given command."""
    arguments.pid = list(demo.members)
    arguments.nodes = []  # the job is on this machine, whatever the config file says
    if arguments.diagnose:
        from hangtop.cli.commands import diagnose

        return diagnose.run(as_given("diagnose", arguments))
    if arguments.dump:
        from hangtop.cli.commands import dump

        return dump.run(as_given("dump", arguments))
    from hangtop.cli.commands import screen

    return screen.run(arguments)


def as_given(command: str, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments of another command, with its defaults for all that was not given."""
    from hangtop.cli.main import build_parser

    defaults = build_parser().parse_args([command])
    return argparse.Namespace(**{**vars(defaults), **vars(arguments), "subcommand": command})


def document() -> dict[str, Any]:
    """Return all scenarios, for programs (schema `hangtop.scenarios/1`)."""
    rows = [
        {
            "name": scenario.name,
            "description": scenario.description,
            "cause": scenario.cause,
            "culprits": scenario.culprits,
            "ranks": scenario.ranks,
            "needs": scenario.needs,
        }
        for scenario in GALLERY
    ]
    return {"schema": "hangtop.scenarios/1", "hangtop": __version__, "scenarios": rows}


def listing() -> str:
    """Return all scenarios, one per line."""
    width = max(len(scenario.name) for scenario in GALLERY)
    lines = [f"  {scenario.name:{width}}  {scenario.description}" for scenario in GALLERY]
    return "\n".join(["scenarios, for `hangtop demo NAME`:", *lines])
