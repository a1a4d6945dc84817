"""Ranks that disagree on an operation, and have imported a package from different folders."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule
from hangtop_core.analysis.verdict.callers import stack_key
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.sentences import is_are, sentence
from hangtop_core.analysis.verdict.steps import on, word
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, Glob

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.text.commands import Command

_INSTALLED = re.compile(r"(.*/(?:site|dist)-packages)/([^/]+)")


def other_folder(case: Case, left: Sequence[Subject] = ()) -> Iterator[Hit]:
    """Who has a package from another folder than most, where ranks wait in different operations."""
    if len(case.waiting_classes) < 2 or case.suspects or case.seats:
        return
    found = _folders(case)
    # Where each node has all its packages in a folder of its own, that says nothing.
    all_ = len(case.waiters)
    if not any(len(some) == all_ for by_folder in found.values() for some in by_folder.values()):
        return
    for package, by_folder in found.items():
        (most, many), *others = sorted(by_folder.items(), key=lambda one: -len(one[1]))
        odd = [s for _, some in others for s in some]
        known = len(many) + len(odd) == all_
        if not odd or len(many) <= len(odd) or not known:
            continue
        own = clean(others[0][0], 120)
        yield Hit(
            subjects=tuple(odd),
            explained=case.waiters,
            summary=sentence(
                case,
                f"{name_ranks(odd)} {is_are(odd, 'has', 'have')} imported {clean(package, 60)} "
                f"from {own}, the others from {clean(most, 120)}, and not all wait in the same "
                "operation: most likely these are different releases of it",
                blamed=odd,
            ),
            evidence=tuple(
                fact("stacks", some[0].number, f"{clean(package, 60)} of {clean(folder, 160)}")
                for folder, some in [(most, many), *others][:SHOWN]
            ),
            steps=(
                *_look(odd[0], others[0][0], package),
                *_look(many[0], most, package),
                Advice("use one environment for all ranks (compare their PYTHONPATH)"),
            ),
        )
        return


def _look(subject: Subject, folder: str, package: str) -> tuple[Command, ...]:
    """See which release of a package lies in a folder; nothing where no shell can be told so."""
    named = word(f"{folder}/{package}")
    return () if named is None else (on(subject, "ls", "-d", Glob((named, ""))),)


def _folders(case: Case) -> Mapping[str, Mapping[str, list[Subject]]]:
    """By installed package in stacks of all who wait: from which folders they have it, and who."""
    found: dict[str, dict[str, list[Subject]]] = defaultdict(lambda: defaultdict(list))
    by_stack: dict[str, dict[str, str]] = {}
    for subject in case.waiters:
        key = stack_key(subject)
        if key not in by_stack:
            met = (_INSTALLED.match(frame.file) for frame in case.reader.frames(key))
            by_stack[key] = {one[2]: one[1] for one in met if one}
        for package, folder in by_stack[key].items():
            found[package][folder].append(subject)
    return found


OTHER_FOLDER = Rule(
    cause="version-mismatch",
    title="A rank has imported a package from another folder than the others",
    seen="Ranks wait in different operations, and files of one installed package in their stacks "
    "lie in one folder for most of them, and in another one for some, while another package is in "
    "the same folder for all.",
    excluded="A rank waits for nobody, or is not there. Nodes have all packages in folders of "
    "their own.",
    confidence=0.7,
    next_steps=("Use one environment for all ranks: compare PYTHONPATH",),
    find=other_folder,
    complete="the files in stacks say from which folders each rank has the package",
)
