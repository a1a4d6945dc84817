"""Whether what a diagnosis says is right English of one rank and of several, and can be pasted."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangtop_core.diagnosis import Diagnosis, Verdict
    from hangtop_core.model.snapshot import Job, Process, Rank, Snapshot, StackSample

T = TypeVar("T")
COMMANDS = frozenset({
    "apt-get", "cat", "cd", "coredumpctl", "cuda-gdb", "df", "dmesg", "docker", "echo", "fuser",
    "gdb", "getent", "grep", "hangtop", "ibstat", "ip", "journalctl", "kill", "killall", "ls",
    "lslocks", "lsof", "mount", "nc", "nsenter", "nvidia-smi", "ping", "pip", "ps", "py-spy",
    "python", "python3", "quota", "scontrol", "sinfo", "srun", "ss", "ssh", "strace", "sudo",
    "sysctl", "systemctl", "tail", "timeout", "torchrun", "ulimit",
})  # fmt: skip
"""Programs that a next step may name."""
OTHERS = 1_000_000
"""What is added to the pids of a second copy of a rank."""
_NAMED = r"(?: \((?:n\d|local|on)[^)]*\))?"
_SEVERAL = re.compile(
    rf"(?<!with )(?<!of )(?<!by )\branks [\d,-]+{_NAMED} (?:still |all |only )?([a-z]+s)\b"
)
_ONE = re.compile(
    rf"(?<!with )(?<!of )(?<!than )\brank \d+{_NAMED} (?:still |all |only )?"
    r"(are|have|were|wait|sit|sleep|write|read|load|run|hold|meet|share|train|get|need|leave)\b"
)
_THEIRS = re.compile(
    r"\branks [\d,-]+ [^;.:]*?(?<!a function that )\b(its|itself)\b(?! (?:own node|place))"
)
_SPACING = re.compile(r" [,;:.](?: |$)|,:|  |\bfor for\b|\bfor: for\b|;;|: :")
_PROSE = re.compile(
    r"[,;] (?:or|and|which|then|its?|drain|reset|end|to|also) |\b(?:on|of) (?:that|its|both) "
    r"|\([a-z]+ [a-z]|, (?:e|i)\.|\basks (?:it|NCCL)\b"
)
_MENTIONED = re.compile(rf"(?:^|: )\(?({'|'.join(map(re.escape, sorted(COMMANDS)))}) -?[-\w/]")
"""A step that begins with a program, or has one after a colon, is one that `y` copies."""


def faults(diagnosis: Diagnosis) -> Iterator[str]:
    """All that is wrong in the sentences and steps of a diagnosis."""
    for verdict in diagnosis.verdicts:
        ours = (one.text for one in verdict.evidence if one.source not in ("log", "kernel"))
        for text in (verdict.summary, *ours):
            yield from grammar(text)
        yield from uncopied(verdict)
        for step in verdict.next_steps:
            yield from unpasted(step)
    for spot in diagnosis.blind_spots:
        yield from unpasted(spot.fix)


def grammar(text: str) -> Iterator[str]:
    """Where number does not agree, and blanks and points that came together wrongly."""
    for pattern in (_SEVERAL, _ONE, _THEIRS, _SPACING):
        if found := pattern.search(text):
            yield f"{found[0]!r} in: {text}"


def command_in(text: str) -> str | None:
    """The command in a step as a reader finds it: in backticks, or after the last colon."""
    quoted = text.split("`")[1:-1:2]
    _, colon, rest = text.rpartition(": ")
    for one in (*quoted, rest if colon else text):
        program, _, _ = one.strip().partition(" ")
        if program.rpartition("/")[2].lstrip("(").rstrip(";") in COMMANDS:
            return one.strip()
    return None


def uncopied(verdict: Verdict) -> Iterator[str]:
    """Commands that a reader finds in next steps, and that `y` does not copy."""
    for step, command in zip(verdict.next_steps, verdict.commands, strict=True):
        if command not in step:
            yield f"{command!r} is not in: {step}"
        if command_in(step) and not command:
            yield f"not copied: {step}"


def unpasted(step: str) -> Iterator[str]:
    """What would go wrong if the command of a step were pasted into a shell."""
    command = command_in(step)
    if command is None:
        if found := _MENTIONED.search(step):
            yield f"{found[0]!r} is not copied from: {step}"
        return
    try:
        shlex.split(command)
    except ValueError as error:
        yield f"{error}: {command}"
    if found := _PROSE.search(re.sub(r"'[^']*'", "''", command)):
        yield f"{found[0]!r} is no part of a command: {command}"


def doubled(snapshot: Snapshot, job: Job) -> tuple[Snapshot, Job]:
    """The same job with every rank twice, as the next numbers: what one rank did, two do."""
    beyond = max([job.world_size or 0, *(rank.rank + 1 for rank in job.ranks)])
    world = None if job.world_size is None else 2 * job.world_size
    ranks = (*job.ranks, *(_again(rank, beyond) for rank in job.ranks))
    two = msgspec.structs.replace(job, ranks=ranks, world_size=world)
    jobs = tuple(two if one is job else one for one in snapshot.jobs)
    return msgspec.structs.replace(snapshot, jobs=jobs), two


def _again(rank: Rank, beyond: int) -> Rank:
    return msgspec.structs.replace(
        rank,
        rank=rank.rank + beyond,
        process=_process(rank.process, beyond),
        children=tuple(_process(child, beyond) for child in rank.children),
        sample=_sample(rank.sample),
        child_samples={pid + OTHERS: _sample(one) for pid, one in rank.child_samples.items()},
        child_moved_at=_moved(rank.child_moved_at.items()),
        child_left_at=_moved(rank.child_left_at.items()),
        child_io_moved_at=_moved(rank.child_io_moved_at.items()),
        child_much_at=_moved(rank.child_much_at.items()),
        child_cpu_share=_moved(rank.child_cpu_share.items()),
        child_descriptors=_moved(rank.child_descriptors.items()),
    )


def _moved(items: Iterable[tuple[int, T]]) -> dict[int, T]:
    return {pid + OTHERS: one for pid, one in items}


def _process(process: Process, beyond: int) -> Process:
    env = dict(process.env)
    if env.get("RANK", "").isdigit():
        env["RANK"] = str(int(env["RANK"]) + beyond)
    return msgspec.structs.replace(
        process,
        pid=process.pid + OTHERS,
        rank=None if process.rank is None else process.rank + beyond,
        rank_pid=None if process.rank_pid is None else process.rank_pid + OTHERS,
        threads=tuple(msgspec.structs.replace(t, tid=t.tid + OTHERS) for t in process.threads),
        env=env,
    )


def _sample(sample: StackSample | None) -> StackSample | None:
    if sample is None:
        return None
    threads = tuple(msgspec.structs.replace(t, tid=t.tid + OTHERS) for t in sample.threads)
    return msgspec.structs.replace(sample, threads=threads)
