"""Causes in GPUs that fail: lost, defective memory, NVLink, and what else the driver reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.gpus import (
    down,
    name_gpu,
    new_link_errors,
)
from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import START_OR_END, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.needs import DRIVER
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import as_host, on, on_node
from hangtop_core.stacks.kinds import COMMUNICATION, Kind
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, duration, of_several, plural
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.xids import Class, Event
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.node.hardware import Gpu
    from hangtop_core.text.commands import Command, Step

_AT_THE_GPU: frozenset[Kind] = COMMUNICATION | {
    "busy", "io", "unknown", "waiting", "teardown", "exited", "zombie",
}  # fmt: skip
"""What a rank may do that a failing GPU explains; who sleeps or is stopped has another reason."""
BEFORE_S = 120.0
"""Seconds before the last progress from which an error may still have to do with the hang."""
_UNUSABLE = frozenset({"lost", "silent", "reset-required", "gone", "error"})
"""States of GPUs."""
_KERNEL_LOG = (Sign.KERNEL_LOG, Sign.PIPE, "grep", "-i", "-e", "nvrm", "-e", "nvswitch")


def _on_gpus(case: Case) -> Iterator[tuple[Subject, Gpu]]:
    for subject in case.on_gpus:
        if subject.activity.kind in _AT_THE_GPU:
            for gpu in case.gpus(subject):
                yield subject, gpu


def _lost_event(case: Case, subject: Subject, gpu: Gpu) -> Event | None:
    return _recent(case, subject, gpu, frozenset({"lost"}))


def _on_working_gpus(case: Case) -> Iterator[tuple[Subject, Gpu]]:
    """Those that are not lost."""
    for subject, gpu in _on_gpus(case):
        if gpu.state not in _UNUSABLE and _lost_event(case, subject, gpu) is None:
            yield subject, gpu


def _recent(case: Case, subject: Subject, gpu: Gpu, kinds: frozenset[Class]) -> Event | None:
    """The first error of these kinds since shortly before the rank last got anywhere."""
    begin = subject.rank.process.started_at
    standing = subject.standing
    if standing.moved or standing.since < case.snapshot.observed_since - 1.0:
        # Else it got nowhere since hangtop came, and how long before, nobody knows.
        last = min(standing.since, subject.rank.process.gone_at or case.at)
        begin = max(begin, last - BEFORE_S)
    found = case.xids.get((subject.rank.node, gpu.index), ())
    return next((one for one in found if one.at >= begin and one.kind in kinds), None)


def _event_facts(case: Case, event: Event | None) -> tuple[Evidence, ...]:
    if event is None:
        return ()
    ago = f"{event.text}, {duration(case.at - event.at)} ago"
    if event.line is None:
        return (fact("gpu", None, f"NVML reports {ago}"),)
    return (fact("kernel", None, f"{ago}: {clean(event.line, 300)}"),)


def _steps(subject: Subject, gpu: Gpu, *more: Step, drain: bool = True) -> tuple[Step, ...]:
    host = as_host(subject.rank.node)
    steps: list[Step] = [*more, on(subject, *_KERNEL_LOG)]
    if drain and host is not None:
        serial = clean(gpu.serial or "unknown", 40)
        why = f"keep jobs from the node until the GPU was reset or replaced (serial {serial})"
        drained = (f"nodename={host}", "state=drain", f"reason=gpu{gpu.index}")
        steps.append(on_node("", "scontrol", "update", *drained, why=why))
    return tuple(steps)


def _query(subject: Subject, gpu: Gpu, what: str) -> Command:
    return on(subject, "nvidia-smi", "-q", "-i", gpu.index, "-d", what)


class _Bad(NamedTuple):
    """A GPU that fails, and the rank on it."""

    subject: Subject
    gpu: Gpu
    text: str
    """`has 3 memory errors that could not be corrected`."""
    steps: tuple[Step, ...]
    confidence: float
    event: Event | None = None
    common: str = ""
    """The same without what differs from GPU to GPU, where anything does."""


def _hits(case: Case, bad: Iterable[_Bad]) -> Iterator[Hit]:
    """One verdict on all GPUs that fail for one reason.

    Who is on one that fails is not told as one that only waits in any of them.
    """
    alike: dict[Hashable, list[_Bad]] = {}
    for one in bad:
        why = one.event.text if one.event is not None else None
        alike.setdefault((one.common or one.text, one.confidence, why), []).append(one)
    failing = _all_failing(case) if alike else ()
    for some in sorted(alike.values(), key=lambda group: -len(group)):
        yield _hit(case, some, failing)


def _all_failing(case: Case) -> tuple[Subject, ...]:
    """All that are on a GPU which fails in any way."""
    ways = (_lost_ones(case), _defective(case), _unlinked(case), _reported(case))
    return tuple({id(one.subject): one.subject for way in ways for one in way}.values())


def _hit(case: Case, bad: Sequence[_Bad], failing: Sequence[Subject]) -> Hit:
    subjects = tuple({id(one.subject): one.subject for one in bad}.values())
    gpus = {(one.subject.rank.node, one.gpu.index): one for one in bad}
    nodes = {node for node, _ in gpus}
    first, many = bad[0], len(gpus) > 1
    events = [one.event for one in bad if one.event is not None]
    when = ""
    if events:
        ago = duration(case.at - min(event.at for event in events))
        when = f"({events[0].text}, {'first ' if many else ''}{ago} ago)"
    text, name = first.text, name_gpu(first.gpu)
    if many:
        text, name = of_several(first.common or first.text), plural(len(gpus), "GPU")
    on_them = f"{who(subjects)} {is_are(subjects, 'is', 'are')} on {'them' if many else 'it'}"
    return Hit(
        subjects=subjects,
        summary=sentence(
            case, f"{name} on {nodesets.fold(nodes)} {text}", when, f"and {on_them}",
            blamed=failing,
        ),
        evidence=(
            *(found for one in bad[:SHOWN] for found in _event_facts(case, one.event)),
            *common_facts(case, subjects),
        ),
        steps=(
            *first.steps,
            *(
                (Advice(f"the same for the other GPUs, on {nodesets.fold(nodes)}"),)
                if many
                else ()
            ),
        ),
        confidence=first.confidence,
    )  # fmt: skip


def _lost(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    yield from _hits(case, _lost_ones(case))


def _lost_ones(case: Case) -> Iterator[_Bad]:
    for subject, gpu in _on_gpus(case):
        event = _lost_event(case, subject, gpu)
        if gpu.state not in _UNUSABLE and event is None:
            continue
        text, common = "is lost", ""
        if gpu.state == "silent":
            text = "does not answer: NVML's calls about it never return"
            common = "does not answer: NVML's calls never return"
        elif gpu.state == "reset-required":
            text = "needs to be reset"
        elif gpu.state == "error":
            text = f"cannot be read any more: {clean(gpu.error or 'no reason given', 80)}"
        sure = 0.97 if event is not None and gpu.state in _UNUSABLE else 0.93
        confidence = 0.6 if gpu.state == "error" and event is None else sure
        yield _Bad(subject, gpu, text, _steps(subject, gpu), confidence, event, common)


def _ecc(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    yield from _hits(case, _defective(case))


def _defective(case: Case) -> Iterator[_Bad]:
    for subject, gpu in _on_working_gpus(case):
        event = _recent(case, subject, gpu, frozenset({"ecc"}))
        rows = gpu.remapped
        if event is None and subject.activity.kind in GONE:
            continue  # why it left, something fresher tells
        if event is None and not gpu.ecc_now and not (rows is not None and rows.failed):
            continue
        text, confidence, common = "has a defect of its memory", 0.9, ""
        if event is None:
            fresh = "ecc" in gpu.new_errors
            text = f"has {gpu.ecc_now} memory errors that could not be corrected"
            common = "has memory errors that could not be corrected" if gpu.ecc_now else ""
            if not gpu.ecc_now:
                text = "has no spare rows of memory left to replace defective ones"
            confidence = 0.85 if fresh else 0.4
        query = _query(subject, gpu, "ECC,ROW_REMAPPER,PAGE_RETIREMENT")
        yield _Bad(subject, gpu, text, _steps(subject, gpu, query), confidence, event, common)


def _nvlink(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    yield from _hits(case, _unlinked(case))


def _unlinked(case: Case) -> Iterator[_Bad]:
    # The links to a GPU that is lost fail at its peers, too.
    hurt = {
        s.rank.node
        for s, gpu in _on_gpus(case)
        if gpu.state in _UNUSABLE or _lost_event(case, s, gpu) is not None
    }
    for subject, gpu in _on_working_gpus(case):
        event = _recent(case, subject, gpu, frozenset({"nvlink"}))
        text, confidence, common = "has NVLink errors", 0.9, ""
        if event is None:
            gone = subject.activity.kind in GONE
            text, confidence, common = ("", 0.0, "") if gone else _links(case, subject, gpu)
        if not text or subject.rank.node in hurt:
            continue
        steps: tuple[Step, ...] = (
            on(subject, "nvidia-smi", "nvlink", "-s", "-i", gpu.index),
            on(subject, "nvidia-smi", "nvlink", "-e", "-i", gpu.index),
        )
        if gpu.fabric not in (None, "completed"):
            steps = (*steps, on(subject, "systemctl", "status", "nvidia-fabricmanager"))
        steps = _steps(subject, gpu, *steps)
        yield _Bad(subject, gpu, text, steps, confidence, event, common)


def _links(case: Case, subject: Subject, gpu: Gpu) -> tuple[str, float, str]:
    """What is wrong with the links of a GPU, how sure that is, and the same without numbers."""
    gpus = case.nodes[subject.rank.node].gpus
    equal = [one for one in gpus if one.index != gpu.index and one.name == gpu.name]
    links = down(gpu)
    if links and not (equal and all(down(one) == links for one in equal)):
        return f"has NVLink {', '.join(map(str, links))} down", 0.8, "has NVLinks down"
    if gpu.fabric not in (None, "completed"):
        return f"has not joined the NVSwitch fabric ({clean(gpu.fabric or '', 40)})", 0.75, ""
    if grown := new_link_errors(gpu):
        text = f"has {plural(grown, 'new NVLink error')} since hangtop came"
        return text, 0.5, "has new NVLink errors since hangtop came"
    return "", 0.0, ""


_ERRORS: dict[Class, float] = {"engine": 0.85, "program": 0.75, "other": 0.6, "echo": 0.4}


def _xid(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    yield from _hits(case, _reported(case))


def _reported(case: Case) -> Iterator[_Bad]:
    for subject, gpu in _on_working_gpus(case):
        plain = _recent(case, subject, gpu, frozenset(_ERRORS) - {"echo"})
        hard = _recent(case, subject, gpu, frozenset({"ecc", "nvlink"}))
        event = plain or _recent(case, subject, gpu, frozenset({"echo"}))
        if plain is None and subject.activity.kind in GONE:
            continue  # whatever kills a process that uses CUDA leads to such an echo
        if event is None or hard is not None:
            continue
        more: tuple[Step, ...] = ()
        if event.kind == "program":
            more = (
                Advice(
                    "most often the program's own doing: run it once with "
                    "CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer"
                ),
            )
        drain = event.kind == "engine"
        steps = _steps(subject, gpu, *more, drain=drain)
        text = "has reported an error"
        yield _Bad(subject, gpu, text, steps, _ERRORS[event.kind], event)


LOST = Rule(
    cause="gpu-lost",
    title="A GPU is lost",
    seen="NVML says that the GPU of a rank is lost, needs a reset or is not there any more; or its "
    "calls about it never return; or the driver reported Xid 54, 79, 119 or 120 since shortly "
    "before the hang.",
    excluded="The rank sleeps, is stopped or waits for a file or a process: that has another "
    "reason.",
    confidence=0.93,
    next_steps=("Read the kernel log (NVRM)", "Drain the node, reset or replace the GPU"),
    find=_lost,
    states=START_OR_END,
    decisive=True,
    needs=DRIVER,
)
ECC = Rule(
    cause="gpu-ecc",
    title="The memory of a GPU is defective",
    seen="Xid 48, 63, 64, 92, 94, 95 or 140 since shortly before the hang; or errors that could "
    "not be corrected, or no spare rows left.",
    excluded="The GPU is lost altogether: `gpu-lost`. Errors from long before make it a weak "
    "suspect only.",
    confidence=0.9,
    next_steps=("nvidia-smi -q -d ECC,ROW_REMAPPER", "Drain the node, reset or replace the GPU"),
    find=_ecc,
    states=START_OR_END,
    needs=DRIVER,
)
NVLINK = Rule(
    cause="gpu-nvlink",
    title="NVLink or the NVSwitch fabric fails",
    seen="Xid 74, 121, 136, 137 or 144 to 150 since shortly before the hang; a link that is down "
    "on this GPU and up on its peers; the fabric is not registered; or link errors grow.",
    excluded="The same links are down on all GPUs of the node: so it is built.",
    confidence=0.9,
    next_steps=("nvidia-smi nvlink -s", "nvidia-smi nvlink -e", "Look at the fabric manager"),
    find=_nvlink,
    states=START_OR_END,
    needs=DRIVER,
)
XID = Rule(
    cause="gpu-xid",
    title="A GPU has reported an error",
    seen="Any other Xid on the GPU of a rank since shortly before the hang. 13 and 31 most often "
    "come from the program itself; 43 and 45 only follow something else.",
    excluded="Xids with a cause of their own: lost, memory, NVLink.",
    confidence=0.85,
    next_steps=("Read the kernel log (NVRM)", "CUDA_LAUNCH_BLOCKING=1, compute-sanitizer"),
    find=_xid,
    states=START_OR_END,
    needs=DRIVER,
)
FAILING = (LOST, ECC, NVLINK, XID)
"""In this order, before what only follows from them."""
