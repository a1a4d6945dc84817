"""What a loop of the program goes over, as its line says: batches, parts of one, steps, epochs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.model.frames import is_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.verdict.callers import Block
    from hangtop_core.model.snapshot import Frame

_PARTS = re.compile(r"micro|accum|chunk", re.IGNORECASE)
"""Loops over the parts of one batch: they are entered anew in every step."""
_DATA = re.compile(r"load|data|batch|sampl|epoch", re.IGNORECASE)
"""Loops over batches, also where a loop over epochs is around them."""
_BATCH = re.compile(r"batch(?!_size)|sampl|example", re.IGNORECASE)
_BATCHES = re.compile(r"loader(?!s)|batches|samples|examples", re.IGNORECASE)
_SETS = re.compile(r"load|data_?set|shard|file|split|domain|task|epoch", re.IGNORECASE)
"""What holds many batches: a loop within one over these is over data."""
_EPOCHS = re.compile(r"epoch|cycle|round|phase", re.IGNORECASE)
_STEPS = re.compile(r"step|iter|update", re.IGNORECASE)
_MEASURES = re.compile(r"valid|eval", re.IGNORECASE)
_NAME = re.compile(r"[^\W\d]\w*")
_COUNTED = re.compile(r"for\b.*\bin\b.*\bt?range\(")
"""Loops that are of one length on all ranks, unless one leaves early."""
_ATTEMPTS = re.compile(r"attempt|retr(?:y|ies)|tries", re.IGNORECASE)


def names_data(block: Block) -> bool:
    """Whether the line of a loop names what it goes over as data."""
    return _DATA.search(block[1]) is not None


def counted(block: Block) -> bool:
    """Whether a loop counts to a number."""
    return _COUNTED.match(block[1]) is not None


def over_batches(block: Block) -> bool:
    """Whether a loop goes over batches: `for i, batch in enumerate(loader):`."""
    what, _, of = block[1].partition(" in ")
    if block[1].startswith("while"):
        return _BATCH.search(block[1]) is not None and "next(" in block[1]
    return not _SETS.search(what) and bool(_BATCH.search(what) or _BATCHES.search(of))


def over_parts(block: Block, around: Sequence[Block]) -> bool:
    """Whether a loop goes over the parts of one batch, as its line says, or that of one around."""
    if _PARTS.search(block[1]):
        return True
    _, _, of = block[1].partition(" in ")
    given = (text.partition(" in ")[0] for _, text in around if text.startswith("for"))
    named = {name for what in given if not _SETS.search(what) for name in _NAME.findall(what)[1:]}
    return not names_data(block) and not named.isdisjoint(_NAME.findall(of))


def over_steps(block: Block) -> bool:
    """Whether a loop goes over steps, by its line, and not over epochs."""
    return block[1].startswith("for") and _counts(block)


def _over_epochs(block: Block) -> bool:
    what, _, of = block[1].partition(" in ")
    return _EPOCHS.search(block[1]) is not None or bool(of and _SETS.search(what))


def _counts(block: Block) -> bool:
    return bool(_STEPS.search(block[1])) and not _EPOCHS.search(block[1])


def epoch_loop(
    training: Sequence[Frame],
    past: Sequence[Frame],
    shared: Sequence[Block],
    left: Sequence[tuple[Frame, Block]],
) -> tuple[Frame, Block] | None:
    """The loop of an epoch, as what is around it says, and not its line; None for any other.

    It is in a loop over epochs, or over what holds data, or in a function that is called after an
    epoch; or who has left it validates. In loops over steps these are no epochs, but parts of them.
    """
    one = next((one for one in left if not _ATTEMPTS.search(one[1][1])), None)
    if one is None:
        return None
    within = training[training.index(one[0]) :]
    if any("epoch" in frame.name.lower() for frame in within[:-1]):
        return one
    if any(map(_counts, shared)):
        return None
    if any(map(_over_epochs, shared[-1:])):
        return one
    own = (frame.name for frame in past if not is_library(frame))
    return one if any(map(_MEASURES.search, own)) else None
