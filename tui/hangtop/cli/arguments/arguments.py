"""Options that several commands share, and how they are completed and checked."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from hangtop.cli import config
from hangtop.cli.output.helptext import Formatter as Formatter
from hangtop_core.diagnosis import HANG_AFTER_S
from hangtop_core.text.rank_sets import parse

Commands = argparse._SubParsersAction
NOT_IN_FILE = ("pid", "job_key")
"""Options that are about one job, and therefore cannot be set in the config file."""

DEFAULTS: dict[str, Any] = {
    "pid": [],
    "all_users": False,
    "job_key": None,
    "interval": 1.0,
    "sample_every": None,
    "hang_after": 30.0,
    "readonly": False,
    "ascii": False,
    "light": False,
    "mouse": False,
    "nodes": [],
    "exclude": [],
    "hostfile": [],
    "job": None,
    "via": "auto",
    "command": None,
    "kube": None,
    "ray": None,
    "fast_kex": False,
    "user": None,
    "python": "python3",
    "init": None,
    "sudo": False,
    "fanout": 32,
    "connect_timeout": 10.0,
}
"""Defaults, applied last, so that an option before the command counts as much as one after it, and
the config file counts more.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors state only what is wrong, without the usage; also for each command."""

    def error(self, message: str) -> NoReturn:
        """Print the error like every other usage error, and exit with status 2."""
        self.exit(2, f"hangtop: {message}\n`{self.prog} --help` shows every option.\n")


def seconds(text: str) -> float:
    """Parse a duration in seconds, above zero and below a million: eleven days."""
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of seconds above 0 and below 1000000"
        )
    return value


def pid(text: str) -> int:
    """Parse a process id."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return int(text)


def rank(text: str) -> int:
    """Parse a rank: its number, or `pid4711` for one without a number."""
    try:
        (number,) = parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank") from None
    return number


def add_flag(group: argparse._ArgumentGroup, name: str, text: str) -> None:
    """Add an option without a value, and `--no-NAME`, which overrides the config file."""
    group.add_argument(name, action="store_true", help=text)
    no, dest = f"--no-{name[2:]}", name[2:].replace("-", "_")
    group.add_argument(no, dest=dest, action="store_false", help=argparse.SUPPRESS)


def add_observing(parser: argparse.ArgumentParser, *, choose: bool = True) -> None:
    """Add the options on what to observe, and how often.

    No option has a default here: a subcommand's default would overwrite a value before the
    subcommand.
    """
    if choose:
        add_targets(parser)
    group = parser.add_argument_group("what to observe", argument_default=argparse.SUPPRESS)
    if choose:
        group.add_argument(
            "--pid",
            type=pid,
            nargs="+",
            action="extend",
            metavar="PID",
            help="only the jobs of these processes: ranks, their workers, or launchers; dump "
            "prints only the ranks that are named",
        )
        add_flag(group, "--all-users", "jobs of other users, too")
        group.add_argument(
            "--job-key",
            metavar="KEY",
            help="one of several jobs: its key, name, run id or [MASTER_ADDR:]MASTER_PORT",
        )
    group.add_argument(
        "--hang-after",
        type=seconds,
        metavar="S",
        help="seconds without progress before a waiting job is called hung (default: "
        f"{HANG_AFTER_S:g})",
    )
    group.add_argument(
        "--interval",
        type=seconds,
        metavar="S",
        help="seconds between two looks (default: 1, watch: 5)",
    )
    group.add_argument(
        "--sample-every",
        type=seconds,
        metavar="S",
        help="seconds between two stacks of a process that runs (default: 5, in its first half "
        "minute on the screen and with diagnose: 1)",
    )
    add_flag(group, "--readonly", "refuse whatever could pause a process")


def count(text: str) -> int:
    """Parse a number from 1 to 9,999."""
    if not text.isdecimal() or not 0 < int(text) < 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 9999")
    return int(text)


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the options on which nodes to observe, and how to reach them."""
    group = parser.add_argument_group(
        "on which nodes",
        "Without any of these: this machine; where no rank runs on it and there is Slurm, your job "
        "there, and of several a choice. Nothing has to be installed on a node but python3.",
        argument_default=argparse.SUPPRESS,
    )
    _add_places(group)
    _add_ways(group)


def _add_places(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-w",
        "--nodes",
        action="append",
        metavar="NODES",
        help="node set: gpu[001-128], n1,n2, @group, and ClusterShell's operators",
    )
    group.add_argument("-x", "--exclude", action="append", metavar="NODES", help="but not these")
    group.add_argument(
        "--hostfile",
        type=Path,
        action="append",
        metavar="FILE",
        help="nodes from a file: host, host:slots, host slots=N; one a line",
    )
    group.add_argument(
        "--job",
        metavar="ID",
        help="nodes and ranks of a Slurm job: 123, 123_4, 123+0, 123.0, or mine, where one job of "
        "yours runs (default: the job this shell is in, if it has other nodes)",
    )
    group.add_argument(
        "--kube",
        metavar="PODS",
        help="pods of a Kubernetes job, by kubectl in your own context: [NAMESPACE/]NAME of a "
        "PyTorchJob, TrainJob, JobSet, MPIJob, RayJob, Job or pod, or a label: app=train",
    )
    group.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="nodes of the Ray cluster that `ray` finds from here, or of HEAD:6379 or "
        "http://HEAD:8265",
    )


def _add_ways(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--via",
        choices=("auto", "ssh", "srun", "pdsh", "command", "local"),
        help="how to reach nodes (default: auto, ssh for all but this machine, pdsh where there is "
        "no ssh; with --job, srun where ssh does not get in)",
    )
    group.add_argument(
        "--command",
        metavar="TEMPLATE",
        help="reach them by this command instead, in which %%h is the node: 'kubectl exec -i %%h "
        "--'; with %%c at its end where it hands what it runs to a shell: 'lsh %%h %%c'",
    )
    group.add_argument("-l", "--user", metavar="USER", help="log in as this user")
    group.add_argument("--python", metavar="PATH", help="Python 3.8+ there (default: python3)")
    group.add_argument(
        "--init", metavar="COMMAND", help="run in the node's shell first, e.g. 'module load python'"
    )
    add_flag(group, "--sudo", "as root, by sudo without password")
    group.add_argument(
        "--fanout", type=count, metavar="N", help="logins at the same time (default: 32)"
    )
    group.add_argument(
        "--connect-timeout", type=seconds, metavar="S", help="seconds to log in (default: 10)"
    )
    add_flag(
        group,
        "--fast-kex",
        "cheaper logins to very many nodes, without post-quantum key exchange (OpenSSH 8)",
    )


def add_screen(parser: argparse.ArgumentParser) -> None:
    """Add the options on how the terminal app is drawn."""
    group = parser.add_argument_group("the terminal app", argument_default=argparse.SUPPRESS)
    add_flag(group, "--ascii", "draw with ASCII characters only")
    add_flag(group, "--light", "colours for a light background")
    add_flag(group, "--mouse", "take mouse clicks (M in the app)")


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the option for a capture, which is shown instead of a running job."""
    parser.add_argument(
        "capture",
        nargs="?",
        metavar="CAPTURE",
        help="look at a file of `hangtop capture` instead of a running job",
    )


def in_file() -> dict[str, argparse.Action]:
    """Return the options that the config file may set, by their keys in the file."""
    parser = argparse.ArgumentParser(add_help=False)
    add_observing(parser)
    add_screen(parser)
    shown = (action for action in parser._actions if action.help is not argparse.SUPPRESS)
    actions = {action.dest: action for action in shown}  # without the --no-... of flags
    return {key: action for key, action in actions.items() if key not in NOT_IN_FILE}


def complete(
    arguments: argparse.Namespace,
    sample_every: float = 5.0,
    sample_early: float | None = None,
    interval: float | None = None,
) -> argparse.Namespace:
    """Fill in options that were not given, from the config file, and then from their defaults.

    Args:
        arguments: as parsed.
        sample_every: seconds between two stacks; a short observation needs more of them than a long
            one.
        sample_early: the same for the first half minute, unless the user says how often.
        interval: seconds between two passes, unless the user gives them.

    Raises:
        UsageError: the config file cannot be used.
    """
    given = vars(arguments)
    file = config.defaults(config.read(config.config_path(), in_file()), given)
    looks = {} if interval is None else {"interval": interval}
    whence = {"from_file": frozenset(file), "given": frozenset(given)}
    filled = {**DEFAULTS, **looks, **file, **given, **whence}
    filled["sample_early"] = None if filled["sample_every"] else sample_early
    filled["sample_every"] = filled["sample_every"] or sample_every
    return argparse.Namespace(**filled)
