"""What is read from flight recorders alone: the causes, as they are documented and weighted."""

from __future__ import annotations

from msgspec import Struct

from hangtop_core.text.commands import Advice


class Pattern(Struct, frozen=True):
    """One cause as flight recorders show it; the numbers F1 to F9 are those of docs/flight.md."""

    cause: str
    title: str
    seen: str
    confidence: float
    next_steps: tuple[Advice, ...]


MISSING = Pattern(
    "missing-collective",
    "A rank has not issued what others wait for (F1)",
    "Its last number in the group is lower than the one the others wait at, and it has nothing in "
    "flight itself. Ranks that only lag behind because they wait elsewhere are victims.",
    0.9,
    (Advice("Look at the stack of that rank: the recorder says who, a stack says why"),),
)
SKIPPED = Pattern(
    "missing-collective",
    "A rank skipped a step, and it was only noticed later (F2)",
    "From some number on, its sequence of calls is that of the others, moved by one.",
    0.9,
    (Advice("Look for a condition around the call site that differs between ranks"),),
)
ABSENT = Pattern(
    "missing-collective",
    "All ranks with a dump wait, and one has none (F7)",
    "Everybody whose recorder could be read has issued the operation; a rank of the group left no "
    "dump. A rank that has died, is stopped, holds the GIL or leaves the job writes none.",
    0.6,
    (Advice("Find out what became of that rank: its log, its node, `hangtop` there"),),
)
ALONE = Pattern(
    "rank-conditional-collective",
    "A few ranks are in a collective that the others do not call (F1, inverted; F2)",
    "One rank in four or fewer has issued the operation, and the others have nothing in flight; or "
    "a rank's sequence of calls has one more than that of the others.",
    0.6,
    (Advice("Look for a collective inside `if rank == 0:`"),),
)
MISMATCHED = Pattern(
    "mismatched-collective",
    "Ranks have issued different operations as the same number (F2)",
    "Same group, same number, different operation. Blamed is the minority.",
    0.9,
    (
        Advice("Compare the call sites"),
        Advice("TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective"),
    ),
)
LET_THROUGH = Pattern(
    "mismatched-collective",
    "Ranks issued different operations as a number that is over (F2)",
    "Same group, same number, different operation, over on all: NCCL compares no calls, and what "
    "follows may hang although all have issued it alike. Told before that hang. Sizes and types "
    "of all_reduce, broadcast and reduce are compared, too.",
    0.85,
    MISMATCHED.next_steps,
)
SIZES = Pattern(
    "mismatched-size",
    "Ranks have issued the same operation with different sizes (F2)",
    "Same group, number and operation, different sizes. all_to_all, scatter and gather may differ.",
    0.9,
    (Advice("Compare the shapes: uneven last batch, padding, vocabulary size"),),
)
TYPES = Pattern(
    "mismatched-dtype",
    "Ranks have issued the same operation with different data types (F2)",
    "Same group, number, operation and sizes, different data types. Also the first number at which "
    "ranks differ that hang in different operations later: as many bytes of another "
    "type go through.",
    0.9,
    (Advice("Compare the data types: autocast, a parameter that was not converted"),),
)
TRANSPORT = Pattern(
    "all-joined-transport",
    "All ranks have joined, and the operation does not end (F3, F4)",
    "The oldest operation in flight was issued by all members alike, with the same sizes, and "
    "nothing older is in flight on any of them.",
    0.75,
    (Advice("Look at network counters, the kernel log and the GPUs of these ranks' nodes"),),
)
INVERSION = Pattern(
    "group-order-inversion",
    "Ranks wait for one another in a circle of groups (F5)",
    "Each of them waits in one group for ranks that wait in another.",
    0.9,
    (Advice("Issue the collectives of the groups in one order on all ranks"),),
)
P2P_CIRCLE = Pattern(
    "p2p-deadlock",
    "Ranks wait for one another's send or recv in a circle (F6)",
    "Each of them sends to, or receives from, a rank that has not posted the other end.",
    0.9,
    (Advice("Let neighbours call send and recv in opposite order, or use batch_isend_irecv"),),
)
P2P_CHAIN = Pattern(
    "p2p-chain",
    "A send or recv has no other end (F6)",
    "A rank waits for a peer that has not posted the matching call and has nothing in flight. The "
    "peer at the head of the chain is blamed.",
    0.85,
    (Advice("Look at the stack of that rank: the recorder says who, a stack says why"),),
)

PATTERNS = (
    MISSING,
    SKIPPED,
    ALONE,
    MISMATCHED,
    LET_THROUGH,
    SIZES,
    TYPES,
    INVERSION,
    P2P_CIRCLE,
    P2P_CHAIN,
    ABSENT,
    TRANSPORT,
)
