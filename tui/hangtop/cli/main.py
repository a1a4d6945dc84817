"""Arguments of the `hangtop` command, and the handling of errors.

Imports nothing heavy: `--help` and the headless commands never load Textual.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, Parser, add_observing, add_screen
from hangtop.cli.arguments.capture import add_capture, add_open
from hangtop.cli.arguments.core import add_core
from hangtop.cli.arguments.debug import add_debug
from hangtop.cli.arguments.demo import add_demo
from hangtop.cli.arguments.diagnose import add_diagnose
from hangtop.cli.arguments.dump import add_dump
from hangtop.cli.arguments.flight import add_flight
from hangtop.cli.arguments.logs import add_logs
from hangtop.cli.arguments.nettest import add_nettest
from hangtop.cli.arguments.numerics import add_numerics
from hangtop.cli.arguments.run import add_run
from hangtop.cli.arguments.strace import add_files, add_strace
from hangtop.cli.arguments.tools import add_completion, add_config, add_doctor
from hangtop.cli.arguments.watch import add_watch
from hangtop.cli.config import config_path
from hangtop.cli.output.streams import check_stdout, drop_stdout, open_standard_streams
from hangtop_core.text.commands import operand, spelt_or_why

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.errors import HangtopError

DESCRIPTION = """\
Find the rank that hangs your distributed PyTorch job, and why.

Without a command: the terminal app, on the training jobs of this machine, on your Slurm job
where none runs here, or on other nodes with -w, which need nothing but python3."""

EXAMPLES = """\
examples:
  hangtop                          watch my jobs on this machine
  hangtop --all-users              those of everybody, as far as permissions allow
  hangtop diagnose                 who holds the job up, and why
  hangtop watch --once             wait until it hangs, then say why
  hangtop dump                     the stacks of all ranks, merged
  hangtop capture -o hang.hangtop  everything about it in one file, without secrets
  hangtop open hang.hangtop        look through that later, anywhere
  hangtop flight dumps/            who holds up the job that left these recorder dumps
  hangtop logs train.out           the first error in the logs of all ranks, and whose it is
  hangtop core                     why a rank crashed: the newest core file, its stacks
  hangtop debug 3                  a pdb prompt in rank 3, of a job started by hangtop run
  hangtop -w 'gpu[01-16]'          a job on sixteen nodes, over ssh
  hangtop --job 4711               a Slurm job, over ssh or srun
  hangtop --kube team-a/train      the pods of a Kubernetes job, by your own kubectl
  hangtop --ray                    the nodes of a Ray cluster, over ssh
  hangtop -w box-1,box-2 --command 'docker exec -i %h'
  hangtop doctor -w 'gpu[01-16]'   what hangtop can see there, and what it lacks
  hangtop nettest -w 'gpu[01-16]'  whether these nodes can talk, and if not, who is to blame
  hangtop run -- torchrun ...      start a job so that it can be looked into when it hangs
  hangtop demo                     try it on a small job that really hangs

defaults for these options can be kept in {config}:
  nodes = "gpu[01-16]"             one long option a line, with _ for -
  via = "ssh"                      the command line wins; --no-sudo over `sudo = true`, too

exit status of diagnose, capture and watch:
  0 progressing, slow or idle   10 hung, explained   11 hung, not explained
  12 no training job   13 nothing could be concluded, or no node answers
  2 wrong usage"""

MODULES = {
    None: "hangtop.cli.commands.screen",
    "dump": "hangtop.cli.commands.dump",
    "capture": "hangtop.cli.commands.capture",
    "open": "hangtop.cli.commands.opening",
    "diagnose": "hangtop.cli.commands.diagnose",
    "watch": "hangtop.cli.commands.watch",
    "flight": "hangtop.cli.commands.flight",
    "logs": "hangtop.cli.commands.logs",
    "core": "hangtop.cli.tools.core",
    "debug": "hangtop.cli.tools.debug",
    "numerics": "hangtop.cli.commands.numerics",
    "strace": "hangtop.cli.commands.strace",
    "files": "hangtop.cli.commands.files",
    "doctor": "hangtop.cli.tools.doctor",
    "nettest": "hangtop.cli.tools.nettest",
    "run": "hangtop.cli.tools.run",
    "demo": "hangtop.cli.tools.demo",
    "config": "hangtop.cli.tools.configcmd",
    "completion": "hangtop.cli.tools.completion",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    epilog = EXAMPLES.format(config=config_path())
    parser: argparse.ArgumentParser = Parser(
        prog="hangtop", description=DESCRIPTION, epilog=epilog, formatter_class=Formatter
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show the version and exit; with --verbose all that a report about a bug needs; "
        "also with --json",
    )
    parser.add_argument(
        "--verbose", dest="version_verbose", action="store_true", help=argparse.SUPPRESS
    )
    parser.add_argument("--json", dest="version_json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--schema",
        nargs="?",
        const="",
        metavar="DOCUMENT",
        help="print the JSON Schema of what --json prints and exit; of one document (dump, "
        "diagnosis, ...) or of all",
    )
    add_observing(parser)
    add_screen(parser)
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", title="commands")
    add_dump(commands)
    add_diagnose(commands)
    add_watch(commands)
    add_capture(commands)
    add_open(commands)
    add_flight(commands)
    add_logs(commands)
    add_core(commands)
    add_debug(commands)
    add_numerics(commands)
    add_strace(commands)
    add_files(commands)
    add_doctor(commands)
    add_nettest(commands)
    add_run(commands)
    add_demo(commands)
    add_config(commands)
    add_completion(commands)
    return parser


OPENS = "`hangtop open {file}` looks through it when it is a capture"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_RESULT = (None, "run", "open", "demo", "debug")
"""Commands that serve their purpose even where their output cannot be written."""


def exit_status(error: HangtopError) -> int:
    """Return the exit status for an error: 2 wrong usage, 13 no node, 12 no job or data, else 1."""
    from hangtop_core.errors import (
        NoCoreError,
        NoDumpError,
        NoJobError,
        NoLogError,
        NoNodeError,
        UsageError,
    )

    if isinstance(error, UsageError):
        return 2
    if isinstance(error, NoNodeError):
        return 13
    return 12 if isinstance(error, NoJobError | NoDumpError | NoLogError | NoCoreError) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    open_standard_streams()
    arguments = _parsed(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has exited, as with `| head`: nothing can be reported.
        drop_stdout()
        return 141
    except TimeoutError:
        # Requests time out before this: hangtop itself got no processor time, or was suspended.
        print("hangtop: no answer in time", file=sys.stderr)
        return 1
    except MemoryError:
        print("hangtop: there is too little memory here (ulimit -v)", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        return _not_written(error)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; on wrong ones exit with status 2 and the reason."""
    parser = build_parser()
    if words and words[0] not in MODULES and os.path.isfile(words[0]):
        file = ascii(words[0])[1:-1]
        opens = OPENS.format(file=spelt_or_why((operand(words[0]),)))
        parser.exit(2, f"hangtop: {file} is no command, but a file: {opens}\n")
    arguments = parser.parse_args(words)
    if arguments.version_verbose and not arguments.version:
        parser.error("--verbose goes with --version")
    if arguments.version_json and not arguments.version:
        parser.error("--json goes after a command, or with --version")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    """Do what the arguments ask for; return the exit status."""
    if arguments.version:
        from hangtop.cli.tools import version

        verbose, as_json = arguments.version_verbose, arguments.version_json
        return _print(version.version_text(verbose, as_json=as_json))
    if arguments.schema is not None:
        return _print_schema(arguments.schema)
    if vars(arguments).get("redact_paths") or vars(arguments).get("redact_hosts"):
        from hangtop.cli.output.redacting import messages

        with messages(arguments):
            return perform(arguments)
    return perform(arguments)


def _print(text: str) -> int:
    """Print what an option asks for that needs no command; return the exit status."""
    print(text)
    sys.stdout.flush()
    return 0


def _print_schema(name: str) -> int:
    from hangtop.jsonschemas import published
    from hangtop_core.errors import UsageError

    try:
        return _print(published.text(name))
    except UsageError as error:
        print(f"hangtop: {error}", file=sys.stderr)
        return 2


def _only_prints(arguments: argparse.Namespace) -> bool:
    """Return whether a command is useless where its output cannot be written."""
    if arguments.subcommand == "watch":
        return arguments.output is None and arguments.on_hang is None
    return arguments.subcommand not in _NO_RESULT


def _not_written(error: OSError) -> int:
    drop_stdout()
    why = os.strerror(error.errno or errno.EIO)
    print(f"hangtop: the output cannot be written: {why}", file=sys.stderr)
    return 1


def perform(arguments: argparse.Namespace) -> int:
    """Run the chosen command, and report what prevents it; return the exit status."""
    from hangtop_core.errors import HangtopError

    if _only_prints(arguments):
        try:
            check_stdout()
        except OSError as error:
            return _not_written(error)
    try:
        status: int = import_module(MODULES[arguments.subcommand]).run(arguments)
        sys.stdout.flush()
    except HangtopError as error:
        print(f"hangtop: {error}", file=sys.stderr)
        if error.help:
            print(error.help, file=sys.stderr)
        return exit_status(error)
    return status
