"""Causes in what GPUs do: a kernel that does not end, low clocks, several ranks on one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.gpus import (
    SLOWDOWN,
    describe,
    doing,
    name_gpu,
    reasons,
    slow,
    usual_clock,
)
from hangtop_core.analysis.native import WAITS_FOR_GPU
from hangtop_core.analysis.verdict.base import ALWAYS, AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import ISSUED
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import on, trace_steps, who_is
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, duration, plural, size
from hangtop_core.text.commands import Advice
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.node.hardware import Gpu
    from hangtop_core.text.commands import Step

ONE_COMPUTES = 0.85
"""What is said where the GPUs of all others spin."""
MANY_BYTES = 1 << 30
"""Memory of a foreign process from which it is in the way."""


def _kernel_stuck(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """A rank that waits for its GPU, which computes and computes, while the others' spin."""
    yield from _alone(case)
    spinning = _all_gpus(case, case.waiters, lambda gpu: doing(gpu) == "spins")
    waited = min((s.standing.still_s for s in spinning), default=0.0)
    if not spinning or waited < case.hang_after:
        return
    for subject in _all_gpus(case, case.waiters, lambda gpu: doing(gpu) == "computes"):
        sample = subject.rank.sample
        since = sample.same_functions_since if sample is not None else None
        if subject.activity.kind != "work-wait" or since is None:
            continue
        if case.at - since < case.hang_after:
            continue
        gpu = case.gpus(subject)[0]
        long = duration(min(case.at - since, waited))
        yield Hit(
            subjects=(subject,),
            summary=(
                f"{who((subject,))} waits for {name_gpu(gpu)}, which has computed for {long} "
                f"({gpu.util} % busy at {gpu.power_w} W), while the GPUs of "
                f"{name_ranks(spinning)} only spin in a kernel that waits: a kernel of rank "
                f"{subject.number} does not end, or takes very long"
            ),
            evidence=common_facts(case, (subject,)),
            steps=(*trace_steps(subject), _cuda_gdb(subject)),
            confidence=ONE_COMPUTES if len(spinning) == len(case.waiters) - 1 else None,
        )


def _alone(case: Case) -> Iterator[Hit]:
    """The only rank of a job waits for its GPU: no collective of it needs another."""
    if case.job.world_size != 1 or len(case.waiters) != 1 or case.progress.state != "hung":
        return
    (subject,) = case.waiters
    gpus = case.gpus(subject)
    if subject.activity.text != WAITS_FOR_GPU or not gpus or doing(gpus[0]) == "idle":
        return
    yield Hit(
        subjects=(subject,),
        summary=(
            f"{who((subject,))} waits for {name_gpu(gpus[0])} at {subject.activity.at} "
            f"{case.since(subject)}: a kernel that was started before does not end, or takes very "
            "long; no other rank can hold it up, since the world size is 1"
        ),
        evidence=common_facts(case, (subject,)),
        steps=(*trace_steps(subject), _cuda_gdb(subject)),
    )


def _cuda_gdb(subject: Subject) -> Step:
    return on(subject, "cuda-gdb", "-p", subject.pid, "-batch", "-ex", "info cuda kernels")


def _all_gpus(
    case: Case, subjects: Sequence[Subject], fits: Callable[[Gpu], bool]
) -> tuple[Subject, ...]:
    """Subjects that have GPUs, of which each fits."""
    if not case.slots:
        return ()
    return tuple(s for s in subjects if case.gpus(s) and all(map(fits, case.gpus(s))))


def _throttled(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    everything = [(s, gpu) for s in case.on_gpus for gpu in case.gpus(s)]
    held = [(s, gpu) for s, gpu in everything if (gpu.reasons or 0) & SLOWDOWN]
    clocks: dict[str | None, list[int]] = defaultdict(list)
    for _, gpu in everything if held else ():
        if gpu.sm_mhz and doing(gpu) in ("computes", "spins", "busy"):
            clocks[gpu.name].append(gpu.sm_mhz)
    usual = {name: usual_clock(some) for name, some in clocks.items()}
    alike: dict[str, list[tuple[Subject, Gpu]]] = defaultdict(list)
    for subject, gpu in held:
        if slow(gpu, usual.get(gpu.name)) and doing(gpu) != "idle":
            alike[reasons(gpu)[0]].append((subject, gpu))
    for why, some in sorted(alike.items(), key=lambda item: -len(item[1])):
        subjects = tuple({id(s): s for s, _ in some}.values())
        first, gpu = some[0]
        count = len({(s.rank.node, one.index) for s, one in some})
        named = name_gpu(gpu) if count == 1 else plural(count, "GPU")
        clock = _span(one.sm_mhz for _, one in some)
        heat = _span(one.temperature for _, one in some)
        peers = _span(usual[one.name] for _, one in some)
        yield Hit(
            subjects=subjects,
            summary=sentence(
                case,
                f"{named} on {nodesets.fold(s.rank.node for s in subjects)}, of {who(subjects)}, "
                f"{'is' if count == 1 else 'are'} slowed down to {clock} MHz"
                f"{f' at {heat} C' if heat else ''}: {why}; "
                f"{'its' if count == 1 else 'their'} peers run at {peers} MHz",
                blamed=subjects,
            ),
            evidence=common_facts(case, subjects),
            steps=(
                on(
                    first,
                    "nvidia-smi",
                    "-q",
                    "-i",
                    gpu.index,
                    "-d",
                    "PERFORMANCE,TEMPERATURE,POWER,CLOCK",
                ),
                Advice("look at its cooling and power supply, and at the GPUs beside it"),
            ),
            confidence=None if case.progress.state == "progressing" else 0.4,
        )


def _span(values: Iterable[int | None]) -> str:
    """`800`, or `800-910`; empty where nothing is known."""
    some = sorted({one for one in values if one is not None})
    return "-".join(str(one) for one in dict.fromkeys((some[0], some[-1]))) if some else ""


def _shared(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    places: dict[tuple[str, int], tuple[Gpu, list[Subject]]] = {}
    for subject in case.on_gpus:
        for slot in case.slots[id(subject)]:
            if slot.how == "process" and slot.part is None:
                place = (subject.rank.node, slot.gpu.index)
                places.setdefault(place, (slot.gpu, []))[1].append(subject)
    for (node, _), (gpu, some) in places.items():
        if len(some) > 1:
            yield Hit(
                subjects=tuple(some),
                summary=sentence(
                    case, f"{name_ranks(some)} are all on {name_gpu(gpu)} of {node}", blamed=some
                ),
                evidence=(fact("gpu", None, f"{describe(gpu)}; {_processes(gpu, some)}"),),
                steps=(
                    Advice(
                        "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything "
                        "touches CUDA, and pass device_id to init_process_group"
                    ),
                    on(some[0], "nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv"),
                ),
                confidence=0.8 if case.waiters and _starting(case) else 0.4,
            )
        else:
            yield from _foreign(case, some[0], gpu)


def _processes(gpu: Gpu, some: Sequence[Subject]) -> str:
    """`on it are pid 901 (rank 2, 1.6 GiB), ...`."""
    ranks = {s.pid: s.number for s in some}
    seen = [one for one in gpu.processes or () if one.pid in ranks][:SHOWN]
    return "on it are " + ", ".join(
        f"pid {one.pid} ({names([ranks[one.pid]])}{f', {size(one.memory)}' if one.memory else ''})"
        for one in seen
    )


def _starting(case: Case) -> bool:
    """Whether ranks are still in what comes first, where NCCL refuses or waits for duplicates."""
    return any(s.activity.kind in ("init", "new-group") for s in case.waiters)


def _foreign(case: Case, subject: Subject, gpu: Gpu) -> Iterator[Hit]:
    """A process that is not of the job, with much memory on the GPU of a rank."""
    own = {one.pid for one in gpu.processes or () if case.owners.has(subject.rank.node, one.pid)}
    others = [
        one for one in gpu.processes or () if one.pid not in own and (one.memory or 0) >= MANY_BYTES
    ]
    if not others or not own:
        return
    names = ", ".join(
        f"pid {one.pid} ({clean(one.comm or 'not seen from here', 40)}, {size(one.memory)})"
        for one in others[:4]
    )
    yield Hit(
        subjects=(),
        explained=(subject,),
        summary=sentence(
            case,
            f"{who((subject,))} shares {name_gpu(gpu)} with "
            f"{is_are([subject] * len(others), 'a process', 'processes')} of no rank: {names}",
        ),
        evidence=(fact("gpu", subject.number, describe(gpu)),),
        steps=(on(subject, *who_is(others[0].pid)),),
        confidence=0.35,
    )


KERNEL_STUCK = Rule(
    cause="gpu-kernel-stuck",
    title="A kernel on a GPU does not end",
    seen="A rank waits for its GPU, in the same functions for the hang time, and that GPU computes "
    "(high power), while the GPUs of the others spin: 100 % busy at little power. Or the only rank "
    "of a job waits for its GPU, which is not idle.",
    excluded="Its GPU spins, too: then it waits for its peers like the others, in a kernel of "
    "NCCL.",
    confidence=0.6,
    next_steps=("cuda-gdb: info cuda kernels", "compute-sanitizer"),
    find=_kernel_stuck,
    states=ALWAYS,
    needs=ISSUED,
)
THROTTLED = Rule(
    cause="gpu-throttled",
    title="A GPU is slowed down",
    seen="The clock of a rank's GPU is below 80 % of its peers', and the driver says why: heat, "
    "power brake or a hardware slowdown.",
    excluded="The GPU is idle, or all are as slow. Slow is not stuck: in a hang it is only a hint.",
    confidence=0.75,
    next_steps=("nvidia-smi -q -d PERFORMANCE", "Look at cooling and power supply"),
    find=_throttled,
    states=ALWAYS,
    complete="the clock and the driver's reason for it are read again and again by themselves",
)
SHARED = Rule(
    cause="gpu-shared",
    title="Ranks share a GPU with one another or with others",
    seen="NVML sees processes of two ranks on one GPU; or a process of no rank has more than 1 GiB "
    "on the GPU of a rank.",
    excluded="They are on different MIG devices. Once a process of no rank is only one of several "
    "explanations, it is not told.",
    confidence=0.8,
    next_steps=("torch.cuda.set_device(LOCAL_RANK) before anything touches CUDA",),
    find=_shared,
    states=AT_START,
    complete="NVML names every process on a GPU, and how much memory it has there",
)
