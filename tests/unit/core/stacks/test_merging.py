"""Merged stacks: nothing is lost, order does not matter, small groups stand out."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.model.frames import plain_name
from hangtop_core.model.snapshot import Failure, Frame
from hangtop_core.stacks.merging import Merged, Node, classes, flatten, merge, steps_of
from support.build import NOW, World
from support.situations import FUTEX, JOIN, LOADER, POLL, SLEEP, frame, user

NAMES = st.sampled_from("abc")
STACKS = st.lists(
    st.lists(st.tuples(NAMES, st.integers(1, 2)), min_size=1, max_size=6), min_size=1, max_size=12
)


def world_of(stacks: list[list[tuple[str, int]]]) -> World:
    world = World()
    for stack in stacks:
        frames = tuple(frame(name, f"{name}.py", line) for name, line in reversed(stack))
        world.add(frames, FUTEX)
    return world


def merged(world: World, **options: bool) -> Merged:
    snapshot = world.snapshot()
    return merge(snapshot, snapshot.jobs[0], **options)


def walk(nodes: tuple[Node, ...] | list[Node]) -> list[Node]:
    return [one for node in nodes for one in [node, *walk(node.children)]]


@given(STACKS)
def test_every_rank_ends_exactly_once(stacks: list[list[tuple[str, int]]]) -> None:
    tree = merged(world_of(stacks))
    ends = sorted(rank for node in walk(tree.roots) for rank in node.ends)
    assert ends == list(range(len(stacks)))


@given(STACKS)
def test_every_node_holds_its_own_and_its_childrens_ranks(
    stacks: list[list[tuple[str, int]]],
) -> None:
    for node in walk(merged(world_of(stacks)).roots):
        below = {rank for child in node.children for rank in child.ranks}
        assert set(node.ranks) == below | set(node.ends)
        assert list(node.ranks) == sorted(set(node.ranks))
        assert [len(child.ranks) for child in node.children] == sorted(
            len(child.ranks) for child in node.children
        )


@given(STACKS, st.integers(0, 1000))
def test_the_order_of_ranks_does_not_matter(stacks: list[list[tuple[str, int]]], seed: int) -> None:
    world = world_of(stacks)
    snapshot = world.snapshot()
    shuffled = list(snapshot.jobs[0].ranks)
    random.Random(seed).shuffle(shuffled)
    other = msgspec.structs.replace(snapshot.jobs[0], ranks=tuple(shuffled))
    assert flatten(merge(snapshot, snapshot.jobs[0])) == flatten(merge(snapshot, other))


@given(STACKS)
def test_joined_rows_leave_out_frames_but_no_rank(stacks: list[list[tuple[str, int]]]) -> None:
    tree = merged(world_of(stacks))
    whole, joined = flatten(tree), flatten(tree, join=True)
    assert len(joined) + sum(row.joined for row in joined) == len(whole)
    assert {row.key for row in joined} <= {row.key for row in whole}


@given(STACKS)
def test_a_path_from_the_root_is_the_stack(stacks: list[list[tuple[str, int]]]) -> None:
    def paths(node: Node, above: tuple[Frame, ...]) -> dict[int, tuple[Frame, ...]]:
        here = (*above, node.frame)
        found = dict.fromkeys(node.ends, here)
        for child in node.children:
            found |= paths(child, here)
        return found

    found: dict[int, tuple[Frame, ...]] = {}
    for root in merged(world_of(stacks)).roots:
        found |= paths(root, ())
    for rank, stack in enumerate(stacks):
        assert [(one.name, one.line) for one in found[rank]] == stack


def test_the_smallest_group_comes_first_and_is_marked() -> None:
    world = World()
    world.waiters(3)
    world.add(user("cool_down", 41), SLEEP)
    rows = flatten(merged(world))
    branches = [row for row in rows if row.first]
    assert [(row.frame.name, row.ranks, row.fewest) for row in branches] == [
        ("cool_down", "3", True),
        ("train_step", "0-2", False),
    ]


def test_none_of_two_groups_of_one_size_stands_out() -> None:
    world = World()
    world.waiters(2)
    world.add(user("cool_down", 41), SLEEP)
    world.add(user("cool_down", 41), SLEEP)
    assert not any(row.fewest for row in flatten(merged(world)))


def test_library_frames_fold_into_the_entry_of_their_run() -> None:
    world = World()
    world.waiters(2)
    world.add(LOADER, POLL)
    rows = flatten(merged(world, libraries=False))
    named = {row.frame.name: row.hidden for row in rows}
    # The logging wrapper of torch says nothing: the call inside it is shown.
    assert named["all_reduce"] == 1
    assert named["_BaseDataLoaderIter.__next__"] == 7
    assert not any("wrapper" in name for name in named)


def test_ranks_part_where_one_waits_inside_a_framework() -> None:
    site = "/venv/lib/python3.11/site-packages"
    loop = [
        ("main", "/mine/train.py", 9),
        ("fit", f"{site}/lightning/trainer.py", 5),
        ("run", f"{site}/lightning/loops.py", 6),
    ]
    waits = [
        *loop,
        ("step", f"{site}/lightning/strategy.py", 7),
        ("barrier", f"{site}/torch/distributed/distributed_c10d.py", 8),
        ("wait", f"{site}/torch/distributed/distributed_c10d.py", 3),
    ]
    user = [*loop, ("training_step", "/mine/model.py", 4)]
    frames = {
        name: [Frame(name=n, file=f, short=f, line=k) for n, f, k in reversed(stack)]
        for name, stack in (("waits", waits), ("user", user))
    }
    steps = {
        name: [(f.name, hidden) for f, hidden in steps_of(stack, libraries=False)]
        for name, stack in frames.items()
    }
    assert steps["waits"] == [("main", 0), ("fit", 2), ("barrier", 1)]
    assert steps["user"] == [("main", 0), ("fit", 1), ("training_step", 0)]


def test_how_python_began_a_process_says_nothing() -> None:
    python, site = "/usr/lib/python3.11", "/venv/lib/python3.11/site-packages"
    spawned = [
        ("<module>", "<string>", 1),
        ("spawn_main", f"{python}/multiprocessing/spawn.py", 122),
        ("BaseProcess.run", f"{python}/multiprocessing/process.py", 108),
    ]
    module = [("_run_module_as_main", "<frozen runpy>", 198), ("_run_code", "<frozen runpy>", 88)]
    wrap = ("_wrap", f"{site}/torch/multiprocessing/spawn.py", 96)
    fit = [("_wrapping", f"{site}/lightning/spawn.py", 5), ("fit", f"{site}/lightning/fit.py", 6)]
    work = ("work", "/mine/train.py", 9)
    load = [("load", f"{python}/pickle.py", 3), ("rebuild", f"{site}/torch/_utils.py", 4)]

    def steps(*calls: tuple[str, str, int]) -> list[tuple[str, int]]:
        frames = [Frame(name=n, file=f, short=f, line=k) for n, f, k in reversed(calls)]
        return [(plain_name(f.name), hidden) for f, hidden in steps_of(frames, libraries=False)]

    assert steps(*spawned, work) == [("spawn_main", 2), ("work", 0)]
    assert steps(*spawned, wrap, *fit, work) == [("_wrapping", 5), ("work", 0)]
    assert steps(*module, *fit, work) == [("_wrapping", 3), ("work", 0)]
    assert steps(*spawned, wrap, work, *load) == [("spawn_main", 3), ("work", 0), ("load", 1)]


def test_a_wait_for_ranks_is_kept_where_torch_itself_was_called() -> None:
    torch = "/venv/lib/python3.11/site-packages/torch"
    waits = [
        ("main", "/mine/train.py", 9),
        ("Module._call_impl", f"{torch}/nn/modules/module.py", 5),
        ("DistributedDataParallel.forward", f"{torch}/nn/parallel/distributed.py", 6),
        ("DistributedDataParallel._sync_buffers", f"{torch}/nn/parallel/distributed.py", 7),
        ("broadcast", f"{torch}/distributed/distributed_c10d.py", 8),
        ("wait", f"{torch}/distributed/c10d_logger.py", 3),
    ]
    frames = [Frame(name=n, file=f, short=f, line=k) for n, f, k in reversed(waits)]
    steps = [(plain_name(f.name), hidden) for f, hidden in steps_of(frames, libraries=False)]
    assert steps == [("main", 0), ("forward", 2), ("broadcast", 1)]


def test_folded_rows_hide_what_is_below_them() -> None:
    world = World()
    world.waiters(3)
    world.add(user("cool_down", 41), SLEEP)
    tree = merged(world)
    main = next(row for row in flatten(tree) if row.frame.name == "main")
    rows = flatten(tree, {main.key})
    assert [row.frame.name for row in rows] == ["<module>", "main"]
    assert rows[-1].folded


def test_no_rank_is_missing_silently() -> None:
    world = World()
    world.waiters(2)
    denied = Failure("denied", "ptrace is not permitted", "run as root")
    world.add(None, FUTEX, sample={"failure": denied})
    world.add(None, FUTEX, sample={"failure": denied}, node="n2")
    world.add(None, None, state="exited", process={"gone_at": NOW})
    tree = merged(world)
    assert tree.total == 5
    assert [(one.ranks, one.nodes, one.why, one.fix) for one in tree.missing] == [
        ((2, 3), ("n1", "n2"), "ptrace is not permitted", "run as root"),
        ((4,), ("n1",), "the process is gone (exited)", None),
    ]
    in_tree = {rank for node in tree.roots for rank in node.ranks}
    assert in_tree | {rank for one in tree.missing for rank in one.ranks} == set(range(5))


def test_all_threads_stand_under_their_names() -> None:
    world = World()
    others = [("a", 4015, user("a", 17), False), ("b", 4016, user("b", 21), False)]
    world.add(JOIN, FUTEX, sample={"others": others})
    snapshot = world.snapshot()
    tree = merge(snapshot, snapshot.jobs[0], threads="all")
    assert {root.frame.name for root in tree.roots} == {
        "thread MainThread",
        "thread a",
        "thread b",
    }


def test_classes_tell_since_when_and_who_moves() -> None:
    world = World()
    world.waiters(1, sample={"same_since": NOW - 40.0})
    world.waiters(2, sample={"same_since": NOW - 3.0, "count": 1})
    world.add(user("cool_down", 41), SLEEP)
    snapshot = world.snapshot()
    small, large = classes(snapshot, snapshot.jobs[0].ranks)
    assert (small.ranks, small.moved) == ((3,), 0)
    assert (large.ranks, large.moved, large.since) == ((0, 1, 2), 2, NOW - 3.0), (
        "who was met elsewhere long ago does not move"
    )


def test_stacks_read_on_nodes_that_cannot_read_the_source_are_equal() -> None:
    world = World()
    world.add(user("step", 5, "x()"), FUTEX)
    world.add(user("step", 5), FUTEX, node="n2")
    snapshot = world.snapshot()
    assert len(classes(snapshot, snapshot.jobs[0].ranks)) == 1
