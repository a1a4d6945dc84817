"""Ranks that meet over a file (torch's FileStore), each over another one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.analysis.verdict.steps import dump_step, strace_step
from hangtop_core.analysis.verdict.storehost import in_store
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Process
    from hangtop_core.text.commands import Step

_URL = re.compile(r"\bfile:/{1,3}\S+")
BY_FOLDER = 0.6
"""Confidence where nothing tells the file but the folder in which ranks run."""


def over_a_file(members: Sequence[Subject]) -> bool:
    """Whether ranks that wait in init_process_group look for what others have written to a file.

    FileStore sleeps 10 ms between two looks (torch 2.13); who meets over TCP sleeps in a socket.
    """
    families = {s.activity.family for s in members}
    init = bool(members) and all(s.activity.kind == "init" for s in members)
    sleep = "sleep" in families and families <= {"sleep", None}
    return init and sleep and not any(map(in_store, members))


def _other_file(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    members = case.waiters
    if case.suspects or case.contradictions or case.seats or not members:
        return
    if not over_a_file(members):
        return
    urls = {id(s): _url(s.rank.process) for s in members}
    told = urls if len(set(urls.values())) > 1 and all(urls.values()) else None
    places = told or {id(s): s.rank.process.cwd for s in members}
    groups = list(alike(members, lambda s: places[id(s)]))
    if len(groups) < 2 or None in places.values():
        return
    names = [(name_ranks(some), clean(places[id(some[0])] or "", 120)) for some in groups[:SHOWN]]
    each = "; ".join(f"{place} ({ranks})" for ranks, place in names)
    odd = [s for some in groups[1:] for s in some]
    blamed = odd if len(groups) < len(members) or len(members) == 2 else []
    what = (
        f"the file that ranks are to meet over differs: {each}"
        if told
        else "ranks look for one another in a file, it seems (FileStore), and run in different "
        f"folders: {each}. A path that does not begin with / is another file in each"
    )
    nodes = {s.rank.node for s in members}
    shared = f", on a file system that {nodesets.fold(nodes)} share" if len(nodes) > 1 else ""
    yield Hit(
        subjects=tuple(blamed),
        explained=members,
        summary=sentence(case, what, blamed=blamed),
        evidence=(
            *(
                fact("environment", None, f"{'file' if told else 'folder'} of {ranks}: {place}")
                for ranks, place in names
            ),
            *common_facts(case, (blamed or members)[:1]),
        ),
        steps=(
            *file_steps(members[0]),
            Advice(
                f"give all of them one whole path in init_method{shared}, and delete what an "
                "earlier run has left there"
            ),
        ),
        confidence=None if told else BY_FOLDER,
    )


def file_steps(subject: Subject) -> tuple[Step, ...]:
    """How to see which file a rank looks at."""
    return (
        dump_step(subject, "--each --locals", why="see init_method in the locals"),
        strace_step(subject, subject.pid),
    )


def _url(process: Process) -> str | None:
    return next((one[0] for word in process.cmdline if (one := _URL.search(word))), None)


OTHER_FILE = Rule(
    cause="launch-misconfigured",
    title="Ranks meet over different files",
    seen="All ranks wait in init_process_group, and their command lines name different file:// "
    f"addresses. With confidence {BY_FOLDER}: they sleep there by a timer, as FileStore does, and "
    "run in different folders.",
    excluded="A rank is missing, or elsewhere. They sleep in a socket: they meet over TCP.",
    confidence=0.9,
    next_steps=("Give all ranks one whole path", "Delete the file that an earlier run has left"),
    find=_other_file,
    states=AT_START,
    complete="the file is open for moments only, and its path stands in locals, which nothing "
    "reads by itself",
)
