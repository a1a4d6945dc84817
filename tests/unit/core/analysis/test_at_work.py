"""Who is always met in one place and works, who has died, and whose end is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from hangtop_core.model.descriptors import Descriptor
from hangtop_core.model.snapshot import DescriptorTable
from support import situations
from support.build import NOW, World
from support.situations import BASE, FUTEX, RUN, SLEEP, frame, user
from support.verdicts import printing

if TYPE_CHECKING:
    from support.situations import Stack

SHUTDOWN: Stack = (frame("_shutdown", "py:threading.py", 1590),)
LATELY = NOW - 1.0


def waiting(count: int = 3) -> World:
    world = World()
    world.waiters(count)
    return world


# -- asleep between pieces


@pytest.mark.parametrize(
    ("loop", "beside", "state"),
    [
        ("for i, answer in enumerate(answers):", (), "progressing"),
        ("for i in range(len(answers)):", (), "progressing"),
        ('for name in [f"clip-{i}" for i in range(200)]:', (), "progressing"),
        ("for attempt in range(1000):", (), "hung"),
        ("for _ in itertools.count():", (), "hung"),
        ("for mirror in itertools.cycle(mirrors):", (), "hung"),
        ("while not path.exists():", (), "hung"),
        ("for url in urls:", ((53, "fetch(url)"), (56, "except OSError:")), "hung"),
    ],
)
def test_who_sleeps_and_prints_gets_on_where_it_goes_through_things(
    loop: str, beside: Any, state: str
) -> None:
    one = replace(user("judge", 41)[0], beside=beside)
    caller = replace(frame("evaluate", "train.py", 60), within=((58, loop),))
    world = waiting()
    world.add((one, caller, *BASE), SLEEP, printed_at=LATELY, moved_at=LATELY)
    assert printing(world).state == state


@pytest.mark.parametrize(
    ("position", "state"), [(1 << 20, "progressing"), (1 << 22, "hung"), (None, "hung")]
)
@pytest.mark.parametrize(("stack", "facts"), [(user("read", 27), SLEEP), (situations.JOIN, FUTEX)])
def test_who_reads_much_gets_on_where_it_is_in_the_midst_of_a_file(
    stack: Stack, facts: Any, position: int | None, state: str
) -> None:
    # None: it opens the file each time that it looks again.
    world = waiting()
    file = Descriptor(9, "file", "/data/packed.bin", "r", position=position, size=1 << 22)
    table = DescriptorTable(NOW - 9, (file,) if position else ())
    world.add(stack, facts, read_at=LATELY, moved_at=NOW - 60, descriptors=table)
    assert printing(world).state == state


COPY: Stack = (frame("copy", "train.py", 20, "time.sleep(1)"),)
BEAT: Stack = (frame("beat", "train.py", 70, "time.sleep(1)"),)
TASK: Stack = (*COPY, frame("_worker", "py:concurrent/futures/thread.py", 81))
RESULT: Stack = (
    situations.QUEUE[0],
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
    *user("save", 44),
)


@pytest.mark.parametrize(
    ("main", "others", "state"),
    [
        (situations.JOIN, [COPY], "progressing"),
        (situations.JOIN, [COPY, BEAT], "hung"),
        (RESULT, [TASK, TASK], "progressing"),
        (RESULT, [TASK, BEAT], "hung"),
        # What is left may be a heartbeat, and who filled the queue dead.
        (situations.QUEUE, [COPY], "hung"),
    ],
)
def test_small_pieces_count_where_only_the_thread_can_move_them_that_is_waited_for(
    main: Stack, others: list[Stack], state: str
) -> None:
    world = waiting()
    threads = [(f"t{at}", 5000 + at, one, False) for at, one in enumerate(others)]
    world.add(main, FUTEX, io_moved_at=LATELY, sample={"others": threads})
    assert printing(world).state == state


def test_who_computes_in_native_code_is_slow_until_that_lasts_far_too_long() -> None:
    world = World(observed_since=NOW - 60.0)
    world.waiters(3)
    world.add(user("refresh", 27), RUN, main_cpu_share=0.9)
    found = printing(world)
    assert (found.state, found.verdicts[0].cause) == ("unknown", "straggler")
    assert "how far that is does not show" in found.verdicts[0].summary


def test_it_is_not_said_to_get_on_in_a_loop_without_an_end() -> None:
    world = World()
    world.waiters(3, moved_at=NOW - 60.0)
    draws = replace(frame("draw", "train.py", 21), within=((20, "while True:"),))
    sample = {"same_functions_since": LATELY}
    world.add((draws, *BASE), RUN, main_cpu_share=0.9, sample=sample)
    found = printing(world)
    assert (found.state, found.verdicts[0].cause) == ("progressing", "straggler")
    assert "gets on" not in found.verdicts[0].summary
    assert "`while True:`" in found.verdicts[0].summary


# -- prompts


def test_a_read_of_a_terminal_is_a_prompt_also_where_it_sleeps_as_in_a_socket() -> None:
    for number, table in (
        (0, None),
        (5, DescriptorTable(NOW - 1, (Descriptor(5, "tty", "/dev/tty"),))),
    ):
        world = waiting()
        world.add(user("confirm", 20), ("S", "wait_woken", "read", number, None), descriptors=table)
        assert printing(world).verdicts[0].cause == "debugger-prompt"
    world = waiting()
    line = user("confirm", 20, 'answer = input("go on? ")')
    world.add(line, ("S", "do_select", "pselect6", None, None))
    assert printing(world).verdicts[0].cause == "debugger-prompt"


# -- who has died, and whose end is waited for

DIED = (
    "Exception in thread feeder:",
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 49, in _convert',
    "    value = self.scales[name]",
    "KeyError: 'value.weight'",
)


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "[default3]:"])
@pytest.mark.parametrize("stack", [situations.QUEUE, situations.THREAD_START])
def test_the_thread_is_named_that_died_of_an_exception(prefix: str, stack: Stack) -> None:
    lines = [prefix + line for line in DIED]
    world = waiting()
    world.add(stack, FUTEX)
    first = printing(world, *lines).verdicts[0]
    assert "thread 'feeder' died of KeyError: 'value.weight' at train.py:49" in first.summary
    assert ("most likely its own" in first.summary) is (not prefix)
    # THEN not of a rank in which a thread of this name lives
    world.ranks.pop()
    alive = {"others": [("feeder", 5000, (*BEAT, *BASE), False)]}
    world.add(stack, FUTEX, sample=alive)
    assert "died of" not in printing(world, *lines).verdicts[0].summary


PINS = (
    "Exception in thread Thread-1 (_pin_memory_loop):",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/threading.py", line 982, in run',
    "    self._target(*self._args, **self._kwargs)",
    f'  File "{situations.SITE}torch/utils/data/_utils/pin_memory.py", line 61, in do_one_step',
    "    r = in_queue.get(timeout=5)",
    "RuntimeError: received 0 items of ancdata",
)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_of_what_the_thread_died_that_pins_memory(prefix: str) -> None:
    world = waiting()
    wait = situations.frame("Condition.wait", "py:threading.py", 331)
    get = situations.frame("Queue.get", "py:queue.py", 180)
    rank = world.add((wait, get, *situations.LOADER[4:]), FUTEX)
    world.give_children(rank, [world.worker(rank, situations.IDLE_WORKER, situations.POLL)])
    first = printing(world, *(prefix + line for line in PINS)).verdicts[0]
    assert first.cause == "pin-memory-stuck"
    assert "died of RuntimeError: received 0 items of ancdata" in first.summary
    assert ("most likely its own" in first.summary) is (not prefix)
    assert "died" not in printing(world, prefix + "step 7").verdicts[0].summary


def test_of_a_traceback_that_has_no_end_no_more_is_told_than_is_known() -> None:
    world = waiting()
    world.add(situations.QUEUE, FUTEX)
    said = printing(world, *DIED[:3], "[rank0]: step 7").verdicts[0].summary
    assert "its end" not in said
    assert "thread 'feeder' died of an exception, most likely its own" in said


def test_the_thread_is_named_that_a_program_waits_for_at_its_end() -> None:
    world = waiting()
    put = (frame("fill", "train.py", 47, "self.ready.put(batch)"),)
    world.add(SHUTDOWN, FUTEX, sample={"others": [("prefetch", 5000, put, False)]})
    first = printing(world).verdicts[0]
    assert first.cause == "teardown"
    assert "(for thread 'prefetch' at train.py:47 (fill)" in first.summary
    world.ranks.pop()
    both = [("prefetch", 5000, put, False), ("beat", 5001, BEAT, False)]
    world.add(SHUTDOWN, FUTEX, sample={"others": both})
    assert "one of its threads that is no daemon: thread 'prefetch'" in (
        printing(world).verdicts[0].summary
    )


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        (
            (frame("Queue._finalize_join", "py:multiprocessing/queues.py", 199),
             frame("_exit_function", "py:multiprocessing/util.py", 360)),
            "take what it has put into a multiprocessing queue out",
        ),
        (
            (frame("_python_exit", "py:concurrent/futures/thread.py", 31), *SHUTDOWN),
            "most likely for thread 'pool_0' at train.py:20",
        ),
    ],
)  # fmt: skip
def test_what_a_program_waits_for_at_its_end_is_told_by_who_waits(stack: Stack, said: str) -> None:
    world = waiting()
    both = [("pool_0", 5000, TASK, False), ("beat", 5001, BEAT, False)]
    world.add(stack, FUTEX, sample={"others": both})
    assert said in printing(world).verdicts[0].summary


def test_a_rank_that_never_joined_may_have_died_of_what_nobody_has_printed_who_lives() -> None:
    world = World()
    for _ in range(3):
        world.add(situations.INIT, situations.POLL)
    first = printing(world, *DIED[1:], world_size=4).verdicts[0]
    assert first.cause == "rank-never-joined"
    assert "it was started and died" in first.summary
    assert "KeyError: 'value.weight' at train.py:49" in first.summary
    own = [f"[rank1]: {line}" for line in DIED[1:]]
    assert "and died" not in printing(world, *own, world_size=4).verdicts[0].summary
