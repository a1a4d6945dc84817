"""Causes in how a job was launched: ranks that were told what cannot all be true, or differ."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.activity import uses_cuda
from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import ALIKE, More
from hangtop_core.analysis.verdict.rendezvous import no_rank
from hangtop_core.analysis.verdict.sentences import is_are, sentence
from hangtop_core.analysis.verdict.steps import on, on_node
from hangtop_core.analysis.versions import NAMES, differences
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.versions import Difference
    from hangtop_core.diagnosis import Evidence

_CONFIDENCE = {"nccl": 0.7, "torch": 0.7, "torch_folder": 0.5, "python": 0.4}
_BESIDE = 0.3
_SHOWN = 3


def _misconfigured(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = case.contradictions
    if not found or not (case.waiters or not case.job.ranks):
        return
    first = found[0]
    blamed = {(rank.node, rank.process.pid) for one in found for rank in one.odd}
    ended = {(rank.node, rank.process.pid) for one in found for rank in one.ends}
    odd = [s for s in case.subjects if (s.rank.node, s.pid) in blamed]
    yield Hit(
        subjects=tuple(odd),
        # All wait for the same: nobody else is to be blamed for where that keeps them.
        explained=case.waiters,
        summary=sentence(case, first.text + no_rank(case), blamed=odd),
        evidence=(*(fact("environment", None, one.text) for one in found),),
        steps=(
            *(on(s, "kill", s.pid) for s in odd[:8] if (s.rank.node, s.pid) in ended),
            *(one.fix for one in found),
        ),
    )


def _versions(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = differences(case.job, case.said.nccl)
    if not found or not case.waiters or case.contradictions:
        return
    first = found[0]
    (most, _), *others = first.ranks.items()
    odd = {(rank.node, rank.process.pid) for _, some in others for rank in some}
    subjects = tuple(s for s in case.subjects if (s.rank.node, s.pid) in odd)
    # Where somebody stays away, that explains the wait, and nobody is to blame for the software.
    beside = bool(case.suspects or case.seats)
    yield Hit(
        subjects=() if beside else subjects,
        explained=() if beside else case.waiters,
        summary=sentence(
            case,
            f"{name_ranks(subjects)} {is_are(subjects, 'runs', 'run')} other software than the "
            f"others: {_told(first)}",
            blamed=() if beside else subjects,
        ),
        evidence=(*_version_facts(found),),
        steps=(Advice(f"use one environment on all nodes, with {NAMES[first.key]} {most}"),),
        confidence=_BESIDE if beside else _CONFIDENCE.get(first.key, 0.5),
    )


def _version_facts(found: Sequence[Difference]) -> Iterator[Evidence]:
    for one in found:
        printed = one.key == "nccl" and any(
            "nccl" not in rank.process.versions for some in one.ranks.values() for rank in some
        )
        yield fact("log" if printed else "environment", None, _told(one))


def _told(one: Difference) -> str:
    """`torch 2.12.0 on node-2 (ranks 2-3), 2.13.0 on node-1 (ranks 0-1)`."""
    parts = [
        f"{version} on {nodesets.fold(rank.node for rank in some)} "
        f"({name_ranks(rank.rank for rank in some)})"
        for version, some in list(one.ranks.items())[:_SHOWN]
    ]
    return f"{NAMES[one.key]} {', '.join(reversed(parts))}"


def _networks(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.suspects or not case.waiters:
        return
    records = [record for one in case.said.folds for record in one.members]
    chosen = {
        record.rank: record.fields["network"].strip()
        for record in sorted(records, key=lambda one: one.order)  # the last one counts
        if record.rank is not None and record.fields.get("network")
    }
    told: dict[str, list[Subject]] = defaultdict(list)
    for subject in case.subjects:
        if subject.number in chosen:
            told[chosen[subject.number]].append(subject)
    if len(told) < 2:
        return
    # Of halves those without InfiniBand: sockets are what NCCL takes where it finds nothing else.
    groups = sorted(told.items(), key=lambda one: (-len(one[1]), one[0] == "Socket"))
    odd = [s for _, some in groups[1:] for s in some]
    said = ", ".join(
        f"{clean(name, 60)} on {nodesets.fold(s.rank.node for s in some)} ({name_ranks(some)})"
        for name, some in reversed(groups[:_SHOWN])
    )
    node = odd[0].rank.node
    yield Hit(
        subjects=tuple(odd),
        summary=sentence(case, f"NCCL has chosen other networks on some ranks: {said}"),
        evidence=(fact("log", None, f"NCCL's network is {said}"),),
        steps=(
            on_node(
                node,
                "ls",
                "/sys/class/infiniband",
                Sign.THEN,
                "ibv_devinfo",
                "-l",
                why="see what ports it has",
            ),
            Advice(
                "look in the log there why: NET/IB : No device found, NCCL_IB_HCA, "
                "NCCL_IB_DISABLE, a plugin that is not loaded"
            ),
            Advice(
                "set NCCL_NET=IB (or Socket) for all ranks: one that cannot says so at its start"
            ),
        ),
    )


def _settings(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.suspects or not case.waiters:
        return
    users = [s for s in case.subjects if "nccl" in s.rank.process.versions]
    for name in MUST_AGREE:
        told: dict[str, list[Subject]] = defaultdict(list)
        for subject in users:
            told[subject.rank.process.env.get(name, "")].append(subject)
        if len(told) < 2:
            continue
        groups = sorted(told.items(), key=lambda one: (-len(one[1]), one[1][0].number))
        said = ", ".join(
            f"{clean(value, 60) or 'not set'} on {nodesets.fold(s.rank.node for s in some)} "
            f"({name_ranks(some)})"
            for value, some in reversed(groups[:_SHOWN])
        )
        yield Hit(
            subjects=tuple(s for _, some in groups[1:] for s in some),
            summary=sentence(case, f"{name} differs between ranks: {said}"),
            evidence=(fact("environment", None, f"{name}: {said}"),),
            steps=(Advice(f"give all ranks the same {name}, or none"),),
        )
        return


def _same_gpu(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.suspects or not case.waiters:
        return
    told: dict[tuple[str, str | None, str], list[Subject]] = defaultdict(list)
    for subject in case.subjects:
        process = subject.rank.process
        gpu = _told_gpu(subject)
        if gpu and "nccl" in process.versions and uses_cuda(process):
            # Where each rank has a cgroup of its own, as with Slurm, each may have a GPU 0.
            told[subject.rank.node, process.cgroup, gpu].append(subject)
    for (node, _, gpu), some in told.items():
        if len(some) < 2:
            continue
        values = sorted({s.rank.process.env["CUDA_VISIBLE_DEVICES"] for s in some})
        said = f"CUDA_VISIBLE_DEVICES is {' or '.join(clean(one, 60) for one in values)} in "
        said += f"{name_ranks(some)} on {clean(node)}: GPU {clean(gpu, 60)} for all of them"
        yield Hit(
            subjects=tuple(some),
            summary=sentence(case, said, blamed=some),
            evidence=(fact("environment", None, said),),
            steps=(
                Advice("leave all GPUs of a node to all its ranks, or each rank one of its own"),
                Advice(
                    "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything "
                    "touches CUDA"
                ),
            ),
        )


def _told_gpu(subject: Subject) -> str:
    """The GPU that its local rank is of those in CUDA_VISIBLE_DEVICES, where that is set."""
    told = subject.rank.process.env.get("CUDA_VISIBLE_DEVICES", "")
    words = [word.strip() for word in told.split(",") if word.strip()]
    local = subject.rank.local_rank
    if not words or (local is None and len(words) > 1):
        return ""
    return words[(local or 0) % len(words)]


MUST_AGREE = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_IB_DISABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_BUFFSIZE",
    "NCCL_LAUNCH_MODE",
)
"""Variables of NCCL by which ranks choose how to talk to one another, each for itself."""

SETTINGS = Rule(
    cause="launch-misconfigured",
    title="Ranks were given different settings of NCCL",
    seen="All ranks wait, NCCL is loaded, and one of these differs between them: "
    f"{', '.join(MUST_AGREE)}.",
    excluded="Anything above has been found. A rank stays away.",
    confidence=0.45,
    next_steps=("Give all ranks the same settings, from one place",),
    find=_settings,
    states=AT_START,
    last=True,
    needs=ALIKE,
)
NETWORKS = Rule(
    cause="launch-misconfigured",
    title="NCCL has chosen different networks on ranks of one job",
    seen="All ranks wait, and in their logs `Using network IB` of some and `Using network Socket`, "
    "or another one, of others. These cannot connect to one another. Blamed are those of the "
    "minority; of halves those that use sockets.",
    excluded="A rank stays away. NCCL logs nothing without NCCL_DEBUG=INFO.",
    confidence=0.75,
    next_steps=("Look why NCCL finds no InfiniBand there", "Set NCCL_NET for all ranks alike"),
    find=_networks,
    states=AT_START,
    needs=(More("logs", "which network NCCL has chosen on each rank"),),
)
SAME_GPU = Rule(
    cause="launch-misconfigured",
    title="Ranks were told to use one GPU",
    seen="All ranks wait, NCCL and CUDA are loaded, and CUDA_VISIBLE_DEVICES leaves ranks of one "
    "node and cgroup the same GPU: the only one in it, or that of their local rank.",
    excluded="Anything above has been found; where NVML sees processes, that tells. A rank stays "
    "away. Ranks in cgroups of their own, each of which may have a GPU 0.",
    confidence=0.5,
    next_steps=("Leave all GPUs of a node to all its ranks, or each rank one of its own",),
    find=_same_gpu,
    states=AT_START,
    last=True,
    needs=(More("logs", "whether NCCL complains: `Duplicate GPU detected`"), *ALIKE),
)
MISCONFIGURED = Rule(
    cause="launch-misconfigured",
    title="Ranks of one job were told what cannot all be true",
    seen="Two live processes with one rank; a WORLD_SIZE, MASTER_ADDR, MASTER_PORT or number of "
    "nodes that differs between ranks or launchers of one job; localhost as the master on several "
    "nodes; one node rank on two nodes; a rank beyond WORLD_SIZE. Ranks are one job when they "
    "share run id, or master and port however spelt; or when they run one script with the same "
    "arguments for one user, were started together, and each part lacks ranks it was told of.",
    excluded="The ranks have met, unless one is there twice. Another spelling of one address.",
    confidence=0.9,
    next_steps=(
        "Give all nodes one master address and port, one number of nodes, and each its node rank",
        "End what is left of an earlier run",
    ),
    find=_misconfigured,
    states=AT_START,
    decisive=True,
    complete="what ranks and launchers were told stands in their environments and command lines, "
    "which are read",
)
VERSIONS = Rule(
    cause="version-mismatch",
    title="Ranks of one job run different software",
    seen="NCCL, torch, torch's CUDA or Python differ between ranks: from the libraries they have "
    "mapped (/proc/PID/maps), torch/version.py and the folder names of wheels beside them, and the "
    "name of the interpreter; or `NCCL version` in the logs of ranks. Where these files are on a "
    "network file system, their folder.",
    excluded="A rank stays away, or waits in another operation: listed before. Software is the "
    "same.",
    confidence=0.7,
    next_steps=("Use one environment on all nodes",),
    find=_versions,
    states=AT_START,
    needs=ALIKE,
)
