"""`hangtop run`: start a job prepared, and be in the way of neither the job nor the shell."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from hangtop_core import prepare
from hangtop_core.errors import UsageError
from hangtop_core.text import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hangtop_hook.names import Version

SI_KERNEL = 0x80
"""si_code of sigaction(2): the terminal sent it, and so to the command, too."""
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
RUN_DIR = "HANGTOP_RUN_DIR"
KNOWN_HANG = (
    "CUDA_LAUNCH_BLOCKING=1 with NCCL 2.14.3 (torch 1.13) is known to hang by itself; "
    "use a newer torch"
)


def run(arguments: argparse.Namespace) -> int:
    """Start the command and wait for it; its exit status is ours."""
    command = arguments.words[arguments.words[:1] == ["--"] :]
    check(arguments, command)
    parts = prepare.Parts(not arguments.no_logs, not arguments.no_signal, arguments.sync_cuda)
    if outer := os.environ.get(RUN_DIR):
        say(f"this is already a prepared run, in {outer}: the command starts as it is")
        return end_alike(start(command, {}))
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
        status = start(prepare.with_exports(command, variables), variables)
    finally:
        finish(directory)
    return end_alike(status)


def check(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    """Refuse what makes no sense."""
    if arguments.json and not arguments.print_env:
        raise UsageError("--json goes with --print-env")
    if not command and not arguments.print_env:
        raise UsageError(
            "no command to start", "Try: hangtop run -- torchrun --nproc-per-node 8 train.py"
        )


def warn_of_sync(version: Version | None) -> None:
    """Say what CUDA_LAUNCH_BLOCKING costs, and where it hangs."""
    say("every CUDA kernel is waited for (CUDA_LAUNCH_BLOCKING=1): this is slow")
    if version is None or version <= (1, 13):
        say(KNOWN_HANG)


def print_environment(variables: Mapping[str, str], *, as_json: bool) -> None:
    """Print what would be set."""
    if as_json:
        print(json.dumps({"schema": "hangtop.run-env/1", "environment": dict(variables)}, indent=1))
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")


def finish(directory: Path) -> None:
    """Wait for the last lines of the ranks, remove what served only them, say what is left."""
    prepare.wait_for_logs(directory)
    left = prepare.tidy(directory)
    say(f"{', '.join(left) or 'nothing written'} in {directory}")


def say(text: str) -> None:
    """One line about hangtop itself, apart from the output of the job."""
    with contextlib.suppress(OSError):
        print(f"hangtop: {clean(text, 2000)}", file=sys.stderr, flush=True)


def start(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the command until it ends; return its status, negative for a signal that ended it."""
    caught = {signal.SIGCHLD, *FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    try:
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **variables},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        say(f"cannot start {command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    while process.poll() is None:
        received = signal.sigwaitinfo(caught)
        if received.si_signo != signal.SIGCHLD and received.si_code != SI_KERNEL:
            process.send_signal(received.si_signo)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process.returncode


def end_alike(status: int) -> int:
    """Return the command's exit status, or end by the signal that ended it, without a core."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
