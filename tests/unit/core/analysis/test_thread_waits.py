"""What is said of threads asleep on a futex: the GIL, one lock, two locks, C code, a Barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.activity import Reader
from hangtop_core.analysis.sourcelines import needs_no_lock, sleeps
from hangtop_core.model.activity_window import Lately
from support.build import HUNG_SINCE, NOW, World, judged
from support.situations import BACKWARD, FUTEX, JOIN, POLL, RUN, c10d, frame, thread, user
from support.verdicts import blamed

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict
    from support.situations import Stack

OTHER = (*FUTEX[:4], "0x5640491d5700")
NATIVE = user("rollout", 118, "self.sim.sim_step(step)")
BEAT = user("heartbeat", 112, "time.sleep(0.5)")


def first(world: World) -> Verdict:
    found = judged(world)
    assert found.verdicts, found
    return found.verdicts[0]


def two(
    main: Stack, other: Stack, *, owner: str = "", facts: object = OTHER, **more: object
) -> World:
    """A rank with a thread beside its main thread, both asleep on a futex, and one that waits."""
    world = World()
    world.waiters(2)
    world.add(
        main,
        FUTEX,
        process={"threads": (thread(4025, facts),), **more.pop("process", {})},  # type: ignore[arg-type, dict-item]
        sample={"gil": owner == "main", "others": [("beat", 4025, other, owner == "other")]},
        **more,
    )
    return world


def test_c_code_that_waits_for_a_condition_with_the_gil() -> None:
    verdict = first(two(NATIVE, BEAT, owner="main"))
    assert verdict.cause == "gil-held"
    assert "thread 'MainThread' (tid 4020) of rank 2 (n1, pid 4020) holds the GIL" in (
        verdict.summary
    )
    assert "a lock or condition of C code (futex)" in verdict.summary
    assert any("'beat' wants the GIL back" in one.text for one in verdict.evidence)


def test_so_it_is_in_a_python_that_calls_every_sleeper_active() -> None:
    # GIVEN what py-spy says of CPython 3.8 to 3.10, where it does not look at the kernel
    world = two(NATIVE, BEAT)
    world.ranks.pop()
    world.add(
        NATIVE,
        FUTEX,
        process={"threads": (thread(4025, OTHER),)},
        sample={"gil": True, "active": True, "others": [("beat", 4025, BEAT, False)]},
    )
    assert first(world).cause == "gil-held"


def test_an_owner_that_has_run_since_it_was_looked_at_is_no_keeper() -> None:
    verdict = first(two(user("f", 3, "with lock:"), user("g", 9), owner="main", moved_at=NOW))
    assert verdict.cause == "lock-wait"


@pytest.mark.parametrize(
    ("cpu", "line", "cause"),
    [
        (0.0, "time.sleep(0.1)", "gil-held"),
        # threads that take turns: who had the GIL a moment ago waits for it now
        (0.3, "time.sleep(0.1)", "busy-in-python"),
    ],
)
def test_another_thread_that_sleeps_on_a_futex_with_the_gil(
    cpu: float, line: str, cause: str
) -> None:
    main = user("train_step", 30, line)
    world = two(main, user("poll", 62, "dev.read()"), owner="other", cpu_share=cpu)
    assert first(world).cause == cause


@pytest.mark.parametrize(("moved", "cause"), [(NOW, "gil-held"), (HUNG_SINCE, "busy-in-python")])
def test_a_main_thread_that_wakes_up_to_ask_for_the_gil(moved: float, cause: str) -> None:
    # GIVEN a main thread that waits until another one has begun, which sleeps with the GIL
    render = user("render", 29, "self.c.sem_wait(self.frame)")
    assert first(two(EVENT, render, owner="other", moved_at=moved)).cause == cause


@pytest.mark.parametrize(("share", "cause"), [(0.01, "gil-held"), (0.4, "busy-in-python")])
def test_another_thread_that_runs_and_never_gives_the_gil_back(share: float, cause: str) -> None:
    # GIVEN a main thread that wakes up to ask for the GIL, or has it by turns
    line = 'record.msg = re.sub(r"((?:\\w+)*)+@", "", record.msg)'
    world = two(
        user("step", 30, "loss = model(x)"),
        user("filter", 62, line),
        owner="other",
        facts=RUN,
        moved_at=NOW,
        cpu_share=1.0,
        main_cpu_share=share,
    )
    verdict = first(world)
    assert verdict.cause == cause
    assert "waits for the GIL" in verdict.summary
    assert "thread 'beat' keeps it, at train.py:62 (filter)" in verdict.summary
    assert "tries ever more ways to match" in verdict.summary


def test_a_thread_that_wants_the_gil_back_waits_for_no_lock() -> None:
    verdict = first(two(NATIVE, BEAT))
    assert verdict.cause == "lock-wait"
    assert "each other" not in verdict.summary
    assert "waits for a lock" not in verdict.summary + str(verdict.evidence)
    assert verdict.confidence < 0.9


@pytest.mark.parametrize(
    ("lines", "facts", "python", "each"),
    [
        (("with self.a:", "self.b.acquire()"), OTHER, "3.11", True),
        (("with self.a:", "with self.b:"), FUTEX, "3.11", False),  # one lock
        (("with self.a:", "with self.b:"), FUTEX, "3.9.18", False),
        (("with self.a:", "with self.b:"), FUTEX, "3.14.0rc1", True),
        (("with self.a:", "pool.run(task)"), OTHER, "3.11", False),
        (("with self.a:", "with self.a:"), OTHER, "3.14", False),
        (("with self.a:", "with self.b:"), OTHER, "3.14", True),
    ],
)
def test_each_others_locks(
    lines: tuple[str, str], facts: object, python: str, *, each: bool
) -> None:
    one, other = user("a", 17, lines[0]), user("b", 21, lines[1])
    verdict = first(two(one, other, facts=facts, process={"versions": {"python": python}}))
    assert verdict.cause == "lock-wait"
    assert ("wait for each other's locks" in verdict.summary) == each
    assert (verdict.confidence > 0.9) == each


BARRIER: Stack = (
    frame("Condition.wait", "py:threading.py", 320),
    frame("Condition.wait_for", "py:threading.py", 343),
    frame("Barrier._wait", "py:threading.py", 714),
    frame("Barrier.wait", "py:threading.py", 677),
    *user("step", 90),
)
EVENT: Stack = (
    frame("Condition.wait", "py:threading.py", 320),
    frame("Event.wait", "py:threading.py", 622),
    *user("step", 90),
)


@pytest.mark.parametrize(
    ("stack", "told"),
    [
        (BARRIER, "waits in a threading.Barrier until enough threads have come at train.py:90"),
        (EVENT, "waits for another thread to wake it (Condition or Event) at train.py:90"),
    ],
)
def test_what_nobody_holds(stack: Stack, told: str) -> None:
    verdict = first(two(stack, user("loop", 71, "self.gate.wait()")))
    assert verdict.cause == "lock-wait"
    assert told in verdict.summary
    assert "hold" not in verdict.summary


@pytest.mark.parametrize(
    ("line", "no_lock"),
    [
        ("time.sleep(0.5)", True),
        ("sleep(self.period)", True),
        ("data = os.read(fd, 4096)", True),
        ("while True:", True),
        ("with lock: time.sleep(1)", False),
        ("rate.sleep()", False),  # of a C++ library: it may sleep in anything
        ("self.file.write(text)", False),  # a buffered file has a lock
        ("y = model(x)", False),
        (None, False),
    ],
)
def test_lines_that_take_no_lock(line: str | None, *, no_lock: bool) -> None:
    assert needs_no_lock(line) == no_lock


def test_a_thread_seen_running_in_a_sleep_sleeps() -> None:
    world = World()
    rank = world.add(user("tick", 7, "time.sleep(self.period)"), RUN, sample={"active": True})
    assert sleeps("time.sleep(self.period)")
    assert Reader(world.snapshot().stacks).rank(rank).kind == "sleep"
    rank = world.add(user("tick", 8, "spin(self.period)"), RUN, sample={"active": True})
    assert Reader(world.snapshot().stacks).rank(rank).kind == "busy"


LOOP: Stack = (
    frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1922),
    frame("BaseEventLoop.run_forever", "py:asyncio/base_events.py", 607),
    *user("serve", 5),
)
RESULT: Stack = (
    frame("Condition.wait", "py:threading.py", 320),
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
)


@pytest.mark.parametrize("below", [True, False])
def test_a_result_that_the_loop_below_has_to_make(*, below: bool) -> None:
    stack = (*RESULT, *user("handle", 40)[:1], *(LOOP if below else user("serve", 5)))
    verdict = first(two(stack, user("poll", 62, "x = f(y)"), facts=FUTEX))
    assert verdict.cause == "queue-wait"
    assert ("its own event loop cannot run" in verdict.summary) == below


def test_a_loop_that_waits_by_itself_is_not_blocked() -> None:
    stack = (frame("EpollSelector.select", "py:selectors.py", 468), *LOOP)
    verdict = first(two(stack, user("poll", 62, "x = f(y)"), facts=FUTEX))
    assert "cannot run" not in verdict.summary


IMPORT: Stack = (
    frame("_load_unlocked", "<frozen importlib._bootstrap>", 690),
    frame("_find_and_load", "<frozen importlib._bootstrap>", 1178),
)


WANTS: Stack = (
    frame("_ModuleLock.acquire", IMPORT[0].file, 107),
    *IMPORT,
    frame("run", "plugin.py", 4),
)


@pytest.mark.parametrize(
    "wait",
    [
        RESULT,
        JOIN[:2],
        (RESULT[0], frame("Event.wait", "py:threading.py", 607)),
        (RESULT[0], frame("Queue.get", "py:queue.py", 171)),
    ],
)
def test_who_waits_at_import_for_a_thread_that_wants_the_module_waits_for_a_lock(
    wait: Stack,
) -> None:
    main = (*wait, frame("<module>", "plugin.py", 9), *IMPORT, *user("load", 3))
    world = two(main, WANTS)
    assert first(world).cause == "lock-wait"
    assert "import deadlock" in first(world).summary
    # One that still imports may be the one that they wait for.
    world = two(main, WANTS)
    world.ranks.pop()
    others = [("a", 4025, WANTS, False), ("b", 4026, (*user("table", 2), *IMPORT), False)]
    threads = (thread(4025, OTHER), thread(4026, OTHER))
    world.add(main, FUTEX, process={"threads": threads}, sample={"others": others})
    assert "import deadlock" not in first(world).summary


@pytest.mark.parametrize("ran", [True, False])
def test_what_is_said_of_a_loop_that_waits(*, ran: bool) -> None:
    world = World()
    world.waiters(2)
    stack = (frame("EpollSelector.select", "py:selectors.py", 468), *LOOP)
    world.add(stack, POLL, moved_at=NOW - 1.0 if ran else HUNG_SINCE)
    verdict = first(world)
    assert verdict.cause == "queue-wait"
    assert ("wakes up now and then" in verdict.summary) == ran
    assert ("nothing in its event loop can run" in verdict.summary) != ran


@pytest.mark.parametrize("imports", [True, False])
def test_a_thread_that_imports_what_the_main_thread_imports(*, imports: bool) -> None:
    above = frame("<module>", "plugin.py", 9)
    main = (*JOIN[:2], above, *(IMPORT if imports else ()), *user("load", 3))
    verdict = first(two(main, WANTS))
    assert verdict.cause == "lock-wait"
    assert ("import deadlock" in verdict.summary) == imports


@pytest.mark.parametrize(
    ("line", "share", "said", "unsaid"),
    [
        ("return bool(ANSWER.match(text))", 0.14, "regular expression", "of a core"),
        ("return spin(text)", 0.97, "97% of a core", "regular expression"),
    ],
)
def test_what_is_said_of_a_busy_line(line: str, share: float, said: str, unsaid: str) -> None:
    world = World()
    world.waiters(2)
    stack = user("score", 63, line)
    world.add(stack, RUN, sample={"active": True, "gil": True}, main_cpu_share=share)
    verdict = first(world)
    assert verdict.cause == "busy-in-python"
    assert said in verdict.summary
    assert unsaid not in verdict.summary


def test_a_main_thread_met_awake_as_it_asks_for_the_gil_gets_nowhere() -> None:
    world = World()
    world.waiters(2)
    render = user("render", 29, "self.c.sem_wait(self.frame)")
    rank = world.add(
        EVENT,
        RUN,
        worked_at=NOW,
        process={"threads": (thread(4025, FUTEX),)},
        sample={"others": [("renderer", 4025, render, True)]},
    )
    assert Reader(world.snapshot().stacks).rank(rank).kind == "gil"
    assert first(world).cause == "gil-held"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, "gil-held"),
        ({"main_cpu_share": 0.2}, None),  # it computes
        ({"main_cpu_share": None}, None),
        ({"lately": Lately(share=0.28, left=12, span_s=18.0)}, "gil-held"),  # on a crowded node
        ({"lately": Lately(share=0.05, left=15, span_s=15.0)}, None),  # the owner only ran just now
        ({"lately": Lately(share=1.0, left=3, span_s=15.0)}, None),
        ({"lately": None}, None),
        ({"same_functions_since": NOW - 4.0}, None),  # it gets on
    ],
)
def test_who_wakes_up_all_the_time_in_a_wait_for_others_asks_for_the_gil(
    fields: dict[str, Any], cause: str | None
) -> None:
    fields = dict(fields)
    # GIVEN a main thread that runs from one reading to the next, and stays in its functions
    world = World()
    world.waiters(2, BACKWARD)
    lately = Lately(share=1.0, left=14, span_s=15.0)
    facts = {
        "others": [("listener", 4025, user("scrub", 9), True)],
        "same_functions_since": fields.pop("same_functions_since", None),
    }
    told: dict[str, Any] = {"moved_at": NOW, "main_cpu_share": 0.005, "lately": lately, **fields}
    one = world.add(
        BACKWARD, FUTEX, process={"threads": (thread(4025, RUN),)}, sample=facts, **told
    )
    assert one.sample is not None
    main, owner = one.sample.threads
    sample = replace(one.sample, threads=(main, replace(owner, active=True)))
    world.ranks[-1] = replace(one, sample=sample)
    found = judged(world)
    assert (found.state == "hung") is (cause is not None)
    if cause:
        assert (found.verdicts[0].cause, blamed(found.verdicts[0])) == (cause, [2])


@pytest.mark.parametrize(
    ("told", "active", "state"),
    [
        ({}, False, "unknown"),
        ({"facts": ("S", None, None, None, None)}, False, "unknown"),  # read on its way
        ({"main_cpu_share": 0.2}, False, "progressing"),  # it computes
        ({"lately": Lately(share=0.5, left=3, span_s=15.0)}, False, "progressing"),
        ({}, True, "progressing"),  # a thread that runs has the GIL for a moment
    ],
)
def test_that_it_runs_says_nothing_before_it_was_watched_for_long(
    told: dict[str, Any], active: bool, state: str
) -> None:
    # GIVEN a main thread that wakes up all the time, while a thread of it has the GIL
    world = World(observed_since=NOW - 5.0)
    world.waiters(2, moved_at=NOW - 7.0)
    others = {"others": [("actor", 4025, user("step", 41), True)]}
    fields = {"facts": FUTEX, "moved_at": NOW, "main_cpu_share": 0.003, **told}
    one = world.add(c10d("all_reduce"), sample=others, **fields)
    assert one.sample is not None
    main, actor = one.sample.threads
    sample = replace(one.sample, threads=(main, replace(actor, active=active)))
    world.ranks[2] = replace(one, sample=sample)
    assert judged(world).state == state
