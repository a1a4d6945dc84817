"""What a pod, a container or a host prints of a rank that is of another one is a quotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.parsing.prefix import Prefixes
from support.logs import judged
from support.verdicts import blamed

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.logs.judging.judged import Judged

    Label = Callable[[int], str]

LABELS: dict[str, Label] = {
    "kubectl": lambda n: f"[pod/train-worker-{n}/pytorch] ",
    "job": lambda n: f"[pod/train-{n}-{('b9q1z', 'x7k2p', '94lmv')[n]}/main] ",
    "jobset": lambda n: f"[pod/lm-node-0-{n}-{('qq12z', '7kp22', 'zz999')[n]}/main] ",
    "operator": lambda n: f"[pod/lm-{'master-0' if n == 0 else f'worker-{n - 1}'}/pytorch] ",
    "stern": lambda n: f"train-worker-{n} pytorch ",
    "compose": lambda n: f"trainer-{n + 1}  | ",
    "compose 1": lambda n: f"trainer_{n + 1}    | ",
    "swarm": lambda n: f"lm_trainer.{n + 1}.{'abcdefghijklmnopqrstuvwxy'[n:]}@gpu{n}    | ",
    "kubetail": lambda n: f"[train-worker-{n}] ",
    "kail": lambda n: f"ml/train-worker-{n}[pytorch]: ",
    "journal": lambda n: f"Nov 21 11:40:0{n} gpu0{n + 3} train[{4711 + n}]: ",
    "pdsh": lambda n: f"gpu{17 + 3 * n}: ",
    "racks": lambda n: f"r{1 + n // 2}-n{1 + n % 2}: ",
    "torchrun": lambda n: f"[gpu-{n + 1}:0]:",
}
NAMES: dict[str, Label] = {
    "pdsh": lambda n: f"{('hera', 'zeus', 'ares')[n]}: ",
    "kubectl": lambda n: f"[pod/lm-7d9f8b6c5-{('b9q1z', 'x7k2p', '94lmv')[n]}/main] ",
    "ray": lambda n: f"(Worker pid={4711 - n}, ip=10.0.0.{n}) ",
}
"""Labels whose numbers tell no order."""


def traceback(rank: int) -> list[str]:
    lines = ("Traceback (most recent call last):", '  File "/job/train.py", line 9, in step')
    return [f"[rank{rank}]: {line}" for line in (*lines, "    x()", "KeyError: 'labels'")]


def warning(rank: int) -> str:
    return f"[rank{rank}]:[W1121 11:17:50.101000000 ProcessGroupNCCL.cpp:4115] using GPU 0"


def log(label: Label, *printed: tuple[int, str | list[str]]) -> str:
    """What nodes print, each line with the label of its node, after some steps of all."""
    steps = [(node, f"step {step}") for step in range(3) for node in range(3)]
    texts = [
        (n, line) for n, some in printed for line in ([some] if isinstance(some, str) else some)
    ]
    return "".join(f"{label(node)}{line}\n" for node, line in [*steps, *texts])


def quotations(found: Judged) -> list[tuple[tuple[int, ...], tuple[str, ...], str]]:
    notes = [one for one in found.notes if one.record.code == "quote"]
    return [(one.ranks, one.nodes, one.record.means) for one in notes]


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_a_node_whose_number_is_above_a_rank_quotes_it(label: Label) -> None:
    found = judged(log(label, (1, "the error of a peer:"), (1, traceback(0))))
    ((ranks, nodes, text),) = quotations(found)
    node = Prefixes(log(label)).take(label(1) + "step")[0].node
    assert (ranks, nodes, text) == ((), (node,), "quotes rank 0: KeyError: 'labels'")
    assert not conclude(found)


WARNED = [(node, warning(node)) for node in range(3)]


@pytest.mark.parametrize("label", [*LABELS.values(), *NAMES.values()], ids=[*LABELS, *NAMES])
@pytest.mark.parametrize("quoted", [0, 2])
def test_a_node_that_prints_what_another_one_prints_as_well_quotes_it(
    label: Label, quoted: int
) -> None:
    found = judged(log(label, *WARNED, (1, traceback(quoted))))
    assert [ranks for ranks, *_ in quotations(found)] == [(1,)]
    assert not conclude(found)


@pytest.mark.parametrize("label", [LABELS["stern"], *NAMES.values()])
def test_of_nodes_with_several_ranks_one_is_of_the_node_that_has_those_next_to_it(
    label: Label,
) -> None:
    own = [(rank // 4, warning(rank)) for rank in range(12)]
    found = judged(log(label, *own, (2, traceback(5))))
    assert [text for *_, text in quotations(found)] == ["quotes rank 5: KeyError: 'labels'"]
    assert not conclude(found)


@pytest.mark.parametrize("label", NAMES.values(), ids=NAMES)
def test_nccl_tells_which_rank_a_node_has(label: Label) -> None:
    def init(rank: int) -> str:
        comm = f"comm 0x55f0{rank} rank {rank} nranks 3 cudaDev 0 busId 1000 commId 0xabc"
        return f"host:{90 + rank}:{90 + rank} [0] NCCL INFO {comm} - Init COMPLETE"

    found = judged(log(label, *((node, init(node)) for node in range(3)), (1, traceback(0))))
    assert [ranks for ranks, *_ in quotations(found)] == [(1,)]
    assert not conclude(found)


OWN = [
    (LABELS["kubectl"], [(1, traceback(1))], 1),
    (LABELS["operator"], [(1, traceback(1))], 1),
    (LABELS["kubectl"], [(1, traceback(9))], 9),
    (LABELS["kubectl"], [*((1, warning(r)) for r in range(8, 16)), (1, traceback(9))], 9),
    # Ranks in another order than that of the names of their nodes.
    (LABELS["stern"], [(0, warning(1)), (1, warning(0)), (1, traceback(0))], 0),
    (LABELS["stern"], [(0, warning(9)), (1, warning(3)), (1, traceback(0))], 0),
    (LABELS["pdsh"], [*((2, warning(rank)) for rank in range(8)), (2, traceback(1))], 1),
    # Nothing tells which ranks nodes have.
    *((label, [(1, traceback(0))], 0) for label in NAMES.values()),
    (lambda _: "[pod/train-worker-1/main] ", [(1, traceback(0))], 0),
]


@pytest.mark.parametrize(("label", "printed", "rank"), OWN)
def test_a_node_that_may_have_a_rank_prints_its_error(
    label: Label, printed: list[tuple[int, str | list[str]]], rank: int
) -> None:
    found = judged(log(label, *printed))
    assert not quotations(found)
    assert blamed(conclude(found)[0]) == [rank]
