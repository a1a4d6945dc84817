"""`hangtop nettest`: whether nodes can communicate, and if not, which one is the culprit."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.targets import launchers
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine, coloured, report_width
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.pdsh import PdshLauncher
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import NoNodeError, UsageError
from hangtop_core.nettest import judge, report
from hangtop_core.nettest.conduct import MAX_NODES, Conductor
from hangtop_core.nettest.facts import Wanted
from hangtop_core.session.session import Options, Session
from hangtop_core.text.clean import shorten

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from hangtop_core.attach.connect.launcher import Launcher


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status.

    Raises:
        UsageError: options that cannot be used.
        NoNodeError: no node responds.
    """
    arguments = complete(arguments)
    if arguments.readonly:
        raise UsageError(
            "nettest opens ports and starts processes on nodes, and --readonly forbids that"
        )
    targets = launchers(arguments, watch=False)
    if any(isinstance(target, PdshLauncher) for target in targets):
        raise UsageError(
            "nettest needs connections that carry both ways, and pdsh's do not",
            "Leave out --via pdsh where ssh is there, or use --via srun in a Slurm job.",
        )
    if len(targets) > MAX_NODES:
        raise UsageError(
            f"nettest tests every node with every other one, {MAX_NODES} nodes at most",
            f"Test parts of them: {len(targets)} nodes were named.",
        )
    wanted = Wanted(
        arguments.port,
        arguments.interface,
        arguments.python,
        arguments.limit,
        arguments.connect_limit,
        not arguments.no_job,
        arguments.pairs,
        arguments.size << 20,
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _test(targets, wanted, arguments)
    finally:
        signal.signal(signal.SIGTERM, before)


def _test(targets: Sequence[Launcher], wanted: Wanted, arguments: argparse.Namespace) -> int:
    names = [target.node for target in targets]
    with StatusLine() as status:
        status.shown = status.shown and not arguments.json
        with Session(Options(interval=0.5, watch=False), diagnose, targets) as session:
            conductor = Conductor(
                session, names, wanted, lambda text: status.show(shorten(text, 78))
            )
            if arguments.print_mpirun:
                return _print_mpirun(conductor, arguments)
            if not arguments.json:
                _announce(names, arguments.port)
            facts = conductor.run()
            status.clear()
    if not facts.looked and not facts.interrupted:
        raise _silent(facts.missing)
    findings = judge.findings(facts)
    code = judge.status(facts, findings, wanted.job)
    renamer = redacting.of(arguments)
    renamer.learn_hosts(facts.nodes)
    if arguments.json:
        document = renamer.data(report.document(facts, findings, code))
        print(to_json(document).decode(), flush=True)
    else:
        text = renamer.text(report.text(facts, findings, code, report_width()))
        print(coloured(text), end="", flush=True)
    return code


def _announce(names: list[str], port: int) -> None:
    """Announce, on a terminal, what this command does and others do not."""
    if sys.stderr.isatty():
        where = f"on {len(names)} nodes" if len(names) > 1 else "here"
        print(
            f"hangtop: opens port {port} and another {where}, for this test only",
            file=sys.stderr,
        )


def _print_mpirun(conductor: Conductor, arguments: argparse.Namespace) -> int:
    facts = conductor.choose()
    if not facts.spots:
        raise _silent({**facts.missing, **facts.failed})
    python = arguments.python if arguments.python != "python3" else None
    print(report.mpirun_line(facts, python), flush=True)
    return 0


def _silent(why: Mapping[str, str]) -> NoNodeError:
    """Return the error that says why the first node does not respond."""
    name, text = next(iter(why.items()))
    return NoNodeError(f"no node answers; {name}: {text}", "`hangtop doctor` says how to reach it.")


def _interrupt(number: int, frame: Any) -> None:
    """End in order, as Ctrl-C does: report what is known, and leave nothing behind on nodes."""
    raise KeyboardInterrupt
