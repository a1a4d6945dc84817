"""Evidence that several rules share, and the ranks that a verdict names."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from hangtop_core.analysis import cgroups
from hangtop_core.analysis.gpus import describe, doing
from hangtop_core.analysis.layout import place_text
from hangtop_core.analysis.standing import wakes_up
from hangtop_core.analysis.verdict.busyloops import loop_told
from hangtop_core.analysis.verdict.callers import in_handler, stack_of
from hangtop_core.analysis.verdict.descriptors import name_descriptor, peer, silent_servers
from hangtop_core.analysis.verdict.naming import kernel_text, name_ranks
from hangtop_core.analysis.verdict.sentences import is_are, several
from hangtop_core.diagnosis import Culprit, Evidence, Source
from hangtop_core.model.frames import where
from hangtop_core.model.node import disk_space
from hangtop_core.text.clean import clean, duration, plural
from hangtop_core.text.rank_sets import fold, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.node.hardware import Gpu

MAX_ABSENT = 64
"""Missing ranks that are named one by one."""
SHOWN = 4
"""Subjects of one verdict whose evidence is spelt out; the others are counted."""


def fact(source: Source, rank: int | None, text: str) -> Evidence:
    """One fact, its text safe to print."""
    return Evidence(source, rank, clean(text, 600))


def culprit(case: Case, subject: Subject) -> Culprit:
    """A subject as a verdict names it."""
    rank, gpus = subject.rank, case.gpus(subject)
    gpu = gpus[0].index if len(gpus) == 1 else None
    return Culprit(subject.number, rank.node, subject.pid, rank.local_rank, gpu, rank.about)


def absent(some: Iterable[Seat]) -> tuple[Culprit, ...]:
    """Missing ranks as a verdict names them."""
    return tuple(Culprit(s.rank, s.node or "?", None, s.local) for s in islice(some, MAX_ABSENT))


def place_facts(some: Sequence[Seat]) -> Iterator[Evidence]:
    """Why missing ranks should be on their node, or what is known of that."""
    first = some[0]
    if first.node is not None and not first.beside:
        text = f"ranks are numbered node by node: node rank {first.group} is {first.node}"
        if first.group is None:
            text = f"{first.node} is the only node on which no rank of the job was seen"
        text += ", if the nodes that were named are those of the job" if first.named else ""
        yield fact("environment", None, text)
    elif first.node is None:
        text = place_text(some)
        if first.group is not None:
            text += f", of node rank {fold({s.group for s in some if s.group is not None})}"
        yield fact("environment", None, text)


def stack_fact(case: Case, subject: Subject) -> Evidence | None:
    """Where a subject's main thread is, and since when that was seen."""
    sample, top = subject.rank.sample, subject.activity.top
    if sample is None or not sample.threads or top is None:
        return None
    thread = subject.activity.thread
    who_ = f"thread '{thread}'" if thread else "main thread"
    text = f"{subject.activity.text.rstrip(',')}: {who_} in {where(top)}"
    site = subject.activity.site
    if site is not None and site != top:
        text += f", called from {where(site)}"
    if site is not None and site.source:
        text += f": `{site.source.strip()}`"
    if site is not None and site.within is not None and not thread:
        handler = in_handler(stack_of(case.snapshot.stacks, subject))
        text += f"; {handler}" if handler else ""
    inside = case.c_function(subject) if not thread else ""
    text += f"; its C frames are {inside}" if inside else ""
    since = sample.same_since if not thread else None
    if since is not None and sample.count > 1:
        text += f"; same in {sample.count} samples over {duration(sample.at - since)}"
    return fact("stacks", subject.number, text)


def process_fact(case: Case, subject: Subject) -> Evidence:
    """What the kernel says of a subject's main thread."""
    text = kernel_text(subject)
    if subject.activity.thread:
        text += f"; the main thread {subject.activity.awaited}"
    moved = subject.rank.moved_at
    node = case.nodes.get(subject.rank.node)
    read = case.at if node is None or node.last_seen is None else min(node.last_seen, case.at)
    # What was read of a node a while ago does not say that it has not run since.
    if moved is not None and read - moved >= 1.0:
        text += f"; last ran {duration(case.at - moved)} ago"
    printed = subject.rank.printed_at
    if printed is not None:
        text += f"; wrote to its log {duration(case.at - printed)} ago"
    return fact("process", subject.number, text)


def waiting_facts(case: Case) -> list[Evidence]:
    """Who waits, where and since when; apart, who did when its node was last heard of."""
    facts = []
    for text, members in case.waiting_classes[:SHOWN]:
        silent, heard = case.unheard(members), case.heard(members)
        if heard:
            long = " " + case.lasting(max(s.standing.since for s in heard))
            said = several(f"waits {text}", heard)
            facts.append(fact("stacks", None, f"{name_ranks(heard)} {said}{long}"))
            facts.extend(waiting_gpus(case, heard))
        if silent:
            ago = duration(min(case.silent_s(s) or 0.0 for s in silent))
            said = f"{name_ranks(silent)} waited {text} when last seen, {ago} ago"
            facts.append(fact("stacks", None, said))
    return facts


def common_facts(case: Case, subjects: Sequence[Subject]) -> tuple[Evidence, ...]:
    """Stack and kernel facts of the first few subjects."""
    facts: list[Evidence] = []
    for subject in subjects[:SHOWN]:
        seen = stack_fact(case, subject)
        facts.extend([seen] if seen else [])
        facts.append(process_fact(case, subject))
        facts.extend(gpu_facts(case, subject))
        facts.extend(socket_facts(case, subject))
        facts.extend(cgroup_facts(case, subject))
        facts.extend(full_facts(case, subject))
        told = loop_told(case, subject)
        facts.extend([fact("stacks", subject.number, told)] if told else [])
    if len(subjects) > SHOWN:
        rest = len(subjects) - SHOWN
        facts.append(fact("stacks", None, f"{plural(rest, 'more rank')} in the same state"))
    return tuple(facts)


def cgroup_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    """What the cgroups of a subject lack."""
    groups = cgroups.of(case.nodes.get(subject.rank.node), subject.rank.process)
    for one in islice(cgroups.telling(groups), SHOWN):
        yield fact("process", subject.number, cgroups.describe(one))


def full_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    """File systems of its node without room: who sleeps by turns may try again to make a file.

    Nothing shows where: a file that cannot be made is not open.
    """
    node = case.nodes.get(subject.rank.node)
    mounts = node.full_mounts[:SHOWN] if node is not None else ()
    used_up = disk_space.of(node, subject.rank.process)[:SHOWN]
    if subject.activity.kind != "sleep" or not wakes_up(subject.rank, subject.standing):
        return
    if mounts:
        text = f"{subject.rank.node}: no space or inodes are left on {', '.join(mounts)}"
        yield fact("process", subject.number, text)
    for one in used_up:
        told = disk_space.describe(one, subject.rank.process.user)
        yield fact("process", subject.number, f"{subject.rank.node}: {told}")


def gpu_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    """What the GPUs of a subject do, and what is wrong with them."""
    for gpu in case.gpus(subject)[:SHOWN]:
        others = [s for s in case.owners.on_gpus[subject.rank.node, gpu.index] if s is not subject]
        too = f"; {name_ranks(others)} {is_are(others, 'is', 'are')} on it, too"
        yield fact("gpu", subject.number, describe(gpu) + (too if others else ""))


def waiting_gpus(case: Case, members: Sequence[Subject]) -> Iterator[Evidence]:
    """What the GPUs of ranks do that wait: busy by 100 % at low power is waiting, too."""
    groups: dict[str, list[tuple[Subject, Gpu]]] = defaultdict(list)
    for subject in members if case.slots else ():
        for gpu in case.gpus(subject):
            groups[doing(gpu)].append((subject, gpu))
    said = {
        "spins": "busy by 100 % at {power}: a kernel waits on them",
        "computes": "computing, at {power}",
        "idle": "idle, at {power}",
    }
    for how, some in groups.items():
        watts = {gpu.power_w for _, gpu in some if gpu.power_w is not None}
        ends = sorted({min(watts), max(watts)}) if watts else ()
        power = f"{'-'.join(map(str, ends))} W" if ends else "unknown power"
        if how in said:
            text = said[how].format(power=power)
            yield fact("gpu", None, f"GPUs of {name_ranks(s for s, _ in some)} are {text}")


def socket_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    """Connections of a subject to others on which bytes have piled up."""
    piled = [
        (one, one.socket)
        for one in subject.rank.opened
        if one.socket is not None and (one.socket.recv_queue or one.socket.send_queue)
    ]
    for one, socket in piled[:SHOWN]:
        text = f"{name_descriptor(one, peer(case, subject, one))}: "
        if socket.state == "SYN_SENT":  # what is counted is no data
            text += f"nothing answers, tried {plural(socket.retransmits + 1, 'time')}"
            yield fact("network", subject.number, text)
            continue
        if socket.state == "LISTEN":  # likewise: who has connected
            text += f"{plural(socket.recv_queue, 'connection')} that nobody has accepted"
            yield fact("network", subject.number, text)
            continue
        # Its own: the other end has just been named.
        told = [
            f"{count} bytes that {rank_name(subject.number)} has {how}"
            for count, how in (
                (socket.recv_queue, "not read"),
                (socket.send_queue, "written, and that are not acknowledged"),
            )
            if count
        ]
        text += ", ".join(told)
        text += f", sent again {socket.retransmits} times in a row" if socket.retransmits else ""
        yield fact("network", subject.number, text)


def server_facts(subject: Subject) -> Iterator[Evidence]:
    """What is wrong with the file servers that a subject may wait for."""
    for server in silent_servers(subject)[:SHOWN]:
        text = f"the server of {server.mount} ({server.fstype}, {server.server}) {server.trouble}"
        yield fact("network", subject.number, text)
