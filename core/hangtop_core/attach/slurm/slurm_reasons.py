"""Why an srun ended: from its output to a state, a reason and a fix.

Texts are those of Slurm 22.05 (src/srun, src/api/step_launch.c, src/common/slurm_errno.c), as
observed; output of the node's shell, sudo or Python is read as after a login.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.attach.connect.launcher import Ending
from hangtop_core.attach.ways.reasons import (
    NODE,
    Context,
    Fix,
    KnownEnding,
    Slot,
    explain_login,
    filled,
    known_ending,
)
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import NodeState

LAUNCH_FAILED = re.compile(r"Task launch for StepId=\S+ failed on node ([A-Za-z0-9_.-]+): (.*)")
UNREACHED = re.compile(
    r"REQUEST_FILE_BCAST\(([A-Za-z0-9_.-]+)\): "
    r"((?:Communication|Message|Socket|Connection|No route|Unable to connect).*)"
)
"""sbcast's message about a node whose slurmd does not answer."""

_LABEL = re.compile(r"^ *\d{1,6}: ", re.MULTILINE)
"""srun's label before each line that a task of a step for many nodes printed."""
TIME_LIMIT = re.compile(r"DUE TO TIME LIMIT")


class Step(NamedTuple):
    """Values for reasons and fixes."""

    node: str
    job: str
    user: str
    words: tuple[str, ...]
    """An srun that starts a step there as hangtop does, for a person to try, up to its program."""


_JOB, _SRUN = Slot("job"), Slot("srun")
_SHOW_NODE = Fix("what Slurm knows of it", ("scontrol", "show", "node", NODE))


def _row(
    pattern: str,
    reason: str,
    fix: Advice | Fix | None = None,
    *,
    again: bool = False,
    gone: bool = False,
) -> KnownEnding:
    state: NodeState = "unreachable" if again or gone else "denied"
    return KnownEnding(re.compile(pattern, re.IGNORECASE), state, reason, fix, again)


TABLE = (
    _row(
        TIME_LIMIT.pattern,
        "its Slurm job has reached its time limit",
        gone=True,
    ),
    _row(
        r"has expired|Invalid job id|already completing or completed|Job has finished"
        r"|Expired or invalid job|No DIRECTIVES to start|error: Job \S+ is no longer",
        "its Slurm job is over: nothing can be started in it any more",
        Fix("the job's own log, and", ("sacct", "-j", _JOB)),
        gone=True,
    ),
    _row(
        r"Job is pending execution",
        "its Slurm job has not started",
        Fix("wait for it", ("squeue", "-j", _JOB)),
        again=True,
    ),
    _row(
        r"Access/permission denied|User not found on host|uid \d+ not found",
        "Slurm lets only the job's user start something in it",
        Advice("run hangtop as {user}, or as root with --via ssh"),
    ),
    _row(
        r"Requested node configuration is not available|Invalid node name specified"
        r"|Requested nodes not in this allocation|node \S+ not in allocation",
        "Slurm says that it is not one of the job's nodes",
        Fix("", ("scontrol", "show", "job", _JOB)),
    ),
    _row(
        r"Invalid generic resource|Unable to satisfy gres|Invalid GRES",
        "Slurm does not accept a step without GPUs in this job",
        Fix("--via ssh; see what happens", (_SRUN, "hostname")),
    ),
    _row(
        r"Requested nodes are busy|step creation temporarily disabled|Unable to create step",
        "Slurm starts no step beside the job: its resources are taken",
        Fix("see what happens", (_SRUN, "hostname")),
        again=True,
    ),
    _row(
        r"Unable to contact slurm controller|Unable to confirm allocation",
        "Slurm's controller does not answer",
        Fix("", ("scontrol", "ping")),
        again=True,
    ),
    _row(
        r"Socket timed out|Communication connection failure|Unable to connect|No route to host",
        "Slurm does not reach it",
        _SHOW_NODE,
        again=True,
    ),
    _row(
        r"STEP \S+ ON \S+ CANCELLED|Job step aborted|Force Terminated",
        "Slurm ended the step hangtop looks through",
        None,
        again=True,
    ),
)


def launch_failures(stderr: str) -> dict[str, str]:
    """Return, by node, why Slurm does not reach it: each of these ends the whole srun."""
    matches = LAUNCH_FAILED.findall(stderr) + UNREACHED.findall(stderr)
    return {node: clean(why, 200) for node, why in matches}


def explain_srun(
    code: int | None, stderr: str, was_ready: bool, step: Step, python: str, sudo: bool
) -> Ending:
    """Return the meaning of the end of an srun, or of one node's part in it."""
    stderr = _LABEL.sub("", stderr)
    values = {"node": (step.node,), "job": (step.job,), "user": (step.user,), "srun": step.words}
    failed = launch_failures(stderr)
    if step.node in failed:
        return Ending(
            "lost" if was_ready else "unreachable",
            f"Slurm cannot start anything on it: {failed[step.node]}",
            True,
            filled(_SHOW_NODE, values),
        )
    if failed:
        failed_nodes = ", ".join(sorted(failed)[:8])
        return Ending(
            "lost" if was_ready else "connecting",
            f"the srun for all nodes failed because of {failed_nodes}; started again without",
            True,
        )
    row = next((entry for entry in TABLE if entry.pattern.search(stderr)), None)
    if row is not None:
        ending = known_ending(row, stderr, was_ready, values)
        # Observations from before the end of the job are worth keeping: lost, not unreachable.
        over = was_ready and ending.state == "unreachable"
        return ending._replace(state="lost") if over else ending
    context = Context(step.node, step.words, python, sudo, (*step.words, python, "-V"))
    return explain_login(code, stderr, was_ready, context)
