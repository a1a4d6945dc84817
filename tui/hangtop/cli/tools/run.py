"""`hangtop run`: start a prepared job, transparently to both the job and the shell."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING

import hangtop_hook
from hangtop.cli.tools.passing import end_alike, start
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import operand, spelt_or_why, stored
from hangtop_core.tools import prepare
from hangtop_hook.numericsfile import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hangtop_hook.names import Version

KNOWN_HANG = (
    "CUDA_LAUNCH_BLOCKING=1 with NCCL 2.14.3 (torch 1.13) is known to hang by itself; "
    "use a newer torch"
)


def run(arguments: argparse.Namespace) -> int:
    """Start the command and wait for it; return its exit status."""
    command = arguments.words[arguments.words[:1] == ["--"] :]
    check(arguments, command)
    parts = prepare.Parts(
        logs=not arguments.no_logs,
        stacks=not arguments.no_signal,
        sync_cuda=arguments.sync_cuda,
        hide_gpus=arguments.hide_gpus,
        numerics=numerics(arguments),
    )
    outer = os.environ.get(hangtop_hook.RUN_DIR)
    if outer and not arguments.print_env:
        say(f"this is already a prepared run, in {outer}: the command starts as it is")
        return end_alike(attempt(command, {}))
    python = prepare.interpreter(command) if command else None
    version = prepare.torch_version(python) if python else None
    if parts.sync_cuda:
        warn_of_sync(version)
    directory = prepare.make(arguments.dir, parts)
    variables = prepare.environment(directory, version, parts, os.environ)
    if arguments.print_env:
        print_environment(variables, as_json=arguments.json)
        return 0
    say(f"logs, dumps and stacks go to {directory}")
    try:
        status = attempt(prepare.with_exports(command, variables), variables)
    finally:
        # Every rank has a log: without one, no process can still need the directory.
        finish(directory, drop_empty=arguments.dir is None and parts.logs)
    if status and any((directory / "flight").glob("*")):
        command = spelt_or_why(("hangtop", "flight", operand(str(directory))))
        say(f"which rank waited for which: {command}")
    return end_alike(status)


def numerics(arguments: argparse.Namespace) -> Settings | None:
    """Return the settings of the search for inf and nan; None where it is off."""
    wanted = arguments.trace_batches or arguments.abort_after_batch is not None
    if not (arguments.detect_overflow or wanted or arguments.overflow == "abort"):
        return None
    return Settings(
        arguments.frames,
        arguments.trace_batches,
        arguments.abort_after_batch,
        arguments.overflow == "abort",
    )


def attempt(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the command; return 126 or 127, as a shell does, where it cannot be started."""
    try:
        return start(command, variables)
    except OSError as error:
        say(f"cannot start {command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def check(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    """Refuse options that make no sense."""
    if arguments.json and not arguments.print_env:
        raise UsageError("--json goes with --print-env")
    if not command and not arguments.print_env:
        raise UsageError(
            "no command to start", "Try: hangtop run -- torchrun --nproc-per-node 8 train.py"
        )


def warn_of_sync(version: Version | None) -> None:
    """Print what CUDA_LAUNCH_BLOCKING costs, and where it hangs."""
    say("every CUDA kernel is waited for (CUDA_LAUNCH_BLOCKING=1): this is slow")
    if version is None or version <= (1, 13):
        say(KNOWN_HANG)


def print_environment(variables: Mapping[str, str], *, as_json: bool) -> None:
    """Print the variables that would be set."""
    if as_json:
        print(to_json({"schema": "hangtop.run-env/1", "environment": variables}).decode())
        return
    for name, value in variables.items():
        print(f"export {name}={stored((value,))}")


def finish(directory: Path, *, drop_empty: bool = False) -> None:
    """Wait for the last log lines, remove temporary files, and report which files are left."""
    prepare.wait_for_logs(directory)
    left = prepare.tidy(directory)
    if drop_empty and not left:
        shutil.rmtree(directory, ignore_errors=True)
        say("nothing was written, and nothing is left")
        return
    say(f"{', '.join(left) or 'nothing written'} in {directory}")
    if prepare.is_full(directory):
        say("its disk is full: logs and dumps are not whole, and ranks may have ended by that")


def say(text: str) -> None:
    """Print one line about hangtop itself, set apart from the output of the job."""
    with contextlib.suppress(OSError):
        print(f"hangtop: {clean(text, 2000)}", file=sys.stderr, flush=True)
