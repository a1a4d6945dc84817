"""Reasons why lines belong to no known rank, and remedies for the next run. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.logs.parsing.tangle import MIXED
from hangtop_core.text.clean import clean, plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hangtop_core.logs.parsing.first_ranks import Key
    from hangtop_core.model.file_log import FileLog, Record

LABEL = (
    "Launch with torchrun --role $(hostname -s): --tee 3, or with --redirects 3 --log-dir DIR",
    "srun --label and mpirun --tag-output label lines, too; hangtop run keeps a log of each rank",
)
COLON = ("Put a colon behind the name: torchrun --role $(hostname -s): --tee 3",)
EXPANDED = (
    "The name was expanded on one node for all: write \\$(hostname -s) within double quotes",
    "Or put the command of each node in single quotes, as srun bash -c '...'",
)


class Ambiguity(Struct, frozen=True):
    """Lines that belong to no known rank."""

    code: str
    """`mixed-tracebacks`, `shared-label` or `run-together`."""
    text: str
    steps: tuple[str, ...]
    """Remedies for the next run."""


def ambiguities(
    records: Sequence[Record], shared: Collection[Key], files: Sequence[FileLog]
) -> tuple[Ambiguity, ...]:
    """Return all ambiguities.

    Args:
        records: all of them, each with its rank.
        shared: labels under which several indistinguishable nodes print.
        files: the parsed files.
    """
    return (*_shared(shared, files), *_run_together(files), *_mixed(records))


def _shared(shared: Collection[Key], files: Sequence[FileLog]) -> Iterator[Ambiguity]:
    places = _labelled_places(files)
    # If only one node prints, its label does not matter.
    alike = {node for node, _ in shared if node} or (set(places) if shared else set())
    several = {label for label, keys in places.items() if len(keys) > 1}
    for label in sorted(alike | several):
        text = f"Several nodes print as {clean(label, 60)}"
        more = ": their equal local ranks cannot be told apart" if label in alike else ""
        yield Ambiguity("shared-label", text + more, EXPANDED)
    if shared and not alike:
        text = "Several nodes print under equal labels: their ranks cannot be told apart"
        yield Ambiguity("shared-label", text, LABEL)


def _labelled_places(files: Sequence[FileLog]) -> dict[str, set[Key]]:
    """Return the nodes and tasks that print under each label of a node."""
    places: dict[str, set[Key]] = defaultdict(set)
    for origin in (stream.origin for file in files for stream in file.streams):
        if origin.local is not None and (origin.group or "").endswith(":"):
            places[(origin.group or "")[:-1]].add((origin.node, origin.task))
    return places


def _run_together(files: Sequence[FileLog]) -> Iterator[Ambiguity]:
    """Yield labels that may be a name with a local rank, or a longer local rank: see `roles`."""
    origins = (stream.origin for file in files for stream in file.streams)
    labels = sorted({o.node for o in origins if o.node and o.local is None and o.group == o.node})
    if labels:
        text = f"Labels such as [{clean(labels[0], 60)}]: do not tell where the name ends"
        yield Ambiguity("run-together", text, COLON)


def _mixed(records: Sequence[Record]) -> Iterator[Ambiguity]:
    total = sum(
        record.count
        for record in records
        if MIXED in record.fields and record.rank is None and record.origin.local is None
    )
    if total:
        text = f"{plural(total, 'traceback')} are mixed line by line, and no prefix tells whose"
        yield Ambiguity("mixed-tracebacks", text, LABEL)
