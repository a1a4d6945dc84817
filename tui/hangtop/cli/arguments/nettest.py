"""Arguments of `hangtop nettest`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_targets, count, seconds
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    from hangtop.cli.arguments.arguments import Commands

PORT = 29500
"""torch's default port (torch/distributed/run.py)."""


def add_nettest(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop nettest`."""
    parser = commands.add_parser(
        "nettest",
        help="say whether nodes can talk, and if not, who is to blame",
        description="Test the network between nodes as a job would use it: interfaces, names, a "
        "port between every pair both ways, then a real job with torch (gloo, and NCCL where GPUs "
        "are): store, init, barrier, all_reduce with its numbers checked, bandwidth, and whether "
        "all nodes compute the same. What fails is narrowed down to a node or a pair. Nothing is "
        "installed. Unlike the rest of hangtop it opens a port on each node, on one address, for "
        "seconds, to nobody but itself; all of it ends with this command.",
        epilog="examples:\n"
        "  hangtop nettest                        this machine alone\n"
        "  hangtop nettest -w 'gpu[001-016]'      sixteen nodes, over ssh\n"
        "  hangtop nettest --job 4711             the nodes of a Slurm job\n"
        "  hangtop nettest -w @gpu --port 6000 --interface ib0\n"
        "  hangtop nettest -w @gpu --python /opt/conda/bin/python\n"
        "  hangtop nettest -w n1,n2 --no-job      ports only, no torch\n"
        "  hangtop nettest -w @gpu --pairs        bandwidth between each pair\n"
        "  hangtop nettest -w n1,n2 --print-mpirun\n"
        "  hangtop nettest -w @gpu --json | jq '.findings[0]'\n\n"
        "exit status:\n"
        "  0 all works   3 something fails, and what   4 some of it could not be tested\n"
        "  2 wrong usage   130 interrupted: what was known by then",
        formatter_class=Formatter,
    )
    _add_options(parser)
    parser.add_argument(
        "--readonly",
        action="store_true",
        default=argparse.SUPPRESS,
        help="refuse: it opens ports and starts processes",
    )
    add_targets(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=port,
        default=PORT,
        metavar="PORT",
        help=f"the port of the job's store, MASTER_PORT (default: {PORT})",
    )
    parser.add_argument(
        "--interface",
        metavar="IF",
        help="interface (ib0) or network (10.0.0.0/8) to test (default: the one nodes share)",
    )
    parser.add_argument(
        "--pairs", action="store_true", help="a job for each pair of nodes, with its bandwidth"
    )
    parser.add_argument("--no-job", action="store_true", help="leave out what needs torch")
    parser.add_argument(
        "--limit",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds for each thing that ranks of the job wait for (default: 10)",
    )
    parser.add_argument(
        "--connect-limit",
        type=seconds,
        default=2.0,
        metavar="S",
        help="seconds for one connection to a port (default: 2)",
    )
    parser.add_argument(
        "--size",
        type=count,
        default=8,
        metavar="MIB",
        help="MiB that ranks send for the bandwidth (default: 8)",
    )
    parser.add_argument(
        "--print-mpirun",
        action="store_true",
        help="only print the command that runs the same job by mpirun",
    )
    parser.add_argument("--json", action="store_true", help="schema hangtop.nettest/1")
    add_redaction(parser)


def port(text: str) -> int:
    """Parse a port number; the nodes report whether it may be opened."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return int(text)
