"""The recorder that a rank writes when it ends: what is in it, where, and at what cost."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_hook import importing, recorder

if TYPE_CHECKING:
    from pathlib import Path

GLOO = "[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"


class Group:
    """A process group."""

    group_desc = "default_pg"


class World:
    """`torch.distributed.distributed_c10d`, as far as the hook looks at it."""

    def __init__(self) -> None:
        group = Group()
        self._world = SimpleNamespace(pg_names={group: "0"}, pg_group_ranks={group: {4: 1, 2: 0}})

    def get_rank(self) -> int:
        return 2

    def init_process_group(self) -> None:
        """Joined already."""

    def destroy_process_group(self) -> None:
        self._world.pg_names.clear()
        self._world.pg_group_ranks.clear()


def dump(**fields: Any) -> dict[str, Any]:
    entry = {"profiling_name": "gloo:all_reduce", "pg_id": 0, "retired": True}
    entries = [{**entry, "collective_seq_id": n} for n in (1, 2)]
    status = {"last_enqueued_collective": 2, "last_completed_collective": 2}
    return {"version": "2.10", "pg_config": {"": {"ranks": "[]"}}, "pg_status": {"0": status},
            "entries": entries, **fields}  # fmt: skip


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """torch's binding: what its recorder holds, and how it was asked."""
    held: dict[str, Any] = {"dump": dump(), "asked": []}

    def dumped(*how: bool) -> bytes:
        held["asked"].append(how)
        return pickle.dumps(held["dump"])

    monkeypatch.setitem(sys.modules, recorder.BINDING, SimpleNamespace(_dump_fr_trace=dumped))
    monkeypatch.setattr(recorder, "_kept", {})
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    monkeypatch.setattr(sys, "last_exc", None, raising=False)
    return held


def keep(folder: Path, world: World) -> recorder.Keeper:
    (folder / "flight").mkdir(exist_ok=True)
    recorder.keep(world, str(folder))
    return recorder._kept[os.getpid()]


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads((folder / "flight" / "ended_rank_2").read_bytes())
    assert sorted(os.listdir(folder / "flight")) == ["ended_rank_2"], "nothing but the whole file"
    return found


def test_a_rank_that_finishes_writes_what_it_holds(tmp_path: Path, torch: dict[str, Any]) -> None:
    keep(tmp_path, World()).write()
    found = written(tmp_path)
    assert found["hangtop"] == {"ended": "finished", "why": ""}
    assert found["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[2, 4]"}}
    assert found["entries"][-1]["retired"] is True
    assert torch["asked"] == [(True, False, False)], "stacks would import torch._inductor"
    assert (tmp_path / "flight" / "ended_rank_2").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kept", ["last_exc", "last_value"])
def test_an_operation_that_failed_is_open(
    tmp_path: Path, torch: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    error = ValueError("step failed")
    error.__cause__ = RuntimeError(GLOO)
    monkeypatch.setattr(sys, kept, error, raising=False)
    keep(tmp_path, World()).write()
    found = written(tmp_path)
    assert found["hangtop"]["ended"] == "collective"
    assert found["hangtop"]["why"].startswith("RuntimeError: [third_party/gloo")
    assert [one["retired"] for one in found["entries"]] == [True, False]
    assert found["pg_status"]["0"]["last_completed_collective"] == 1


def test_an_exception_of_the_program_leaves_operations_as_they_are(
    tmp_path: Path, torch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", KeyError("batch" * 1000), raising=False)
    keep(tmp_path, World()).write()
    found = written(tmp_path)
    assert found["hangtop"]["ended"] == "exception"
    assert len(found["hangtop"]["why"]) == 300
    assert found["entries"][-1]["retired"] is True


def test_groups_that_were_destroyed_are_known_all_the_same(
    tmp_path: Path, torch: dict[str, Any]
) -> None:
    world = World()
    importing.wrap(world, str(tmp_path))
    keeper = keep(tmp_path, world)
    world.destroy_process_group()
    keeper.write()
    assert written(tmp_path)["pg_config"]["0"]["ranks"] == "[2, 4]"


def test_torch_s_own_dump_is_the_better_one(tmp_path: Path, torch: dict[str, Any]) -> None:
    keeper = keep(tmp_path, World())
    own = tmp_path / "flight" / "rank_2"
    own.write_bytes(b"with stacks")
    keeper.write()
    assert os.listdir(own.parent) == ["rank_2"]


def test_a_new_attempt_does_not_show_what_the_one_before_left(
    tmp_path: Path, torch: dict[str, Any]
) -> None:
    (tmp_path / "flight").mkdir()
    (tmp_path / "flight" / "ended_rank_2").touch()
    keep(tmp_path, World())
    assert os.listdir(tmp_path / "flight") == []


def test_neither_a_fork_nor_a_second_end_writes(tmp_path: Path, torch: dict[str, Any]) -> None:
    keeper = keep(tmp_path, World())
    if (child := os.fork()) == 0:
        keeper.write()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.listdir(tmp_path / "flight") == []
    keeper.write()
    (tmp_path / "flight" / "ended_rank_2").unlink()
    keeper.write()
    assert os.listdir(tmp_path / "flight") == []


@pytest.mark.parametrize(
    "what", ["no torch", "empty", "huge", "no folder", "not to be written", "broken"]
)
def test_where_it_cannot_be_nothing_is_left_and_nothing_raised(
    tmp_path: Path, torch: dict[str, Any], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    keeper = keep(tmp_path, World())
    if what == "no torch":
        monkeypatch.setitem(sys.modules, recorder.BINDING, None)
    elif what == "empty":
        torch["dump"] = {"version": "2.10"}
    elif what == "huge":
        monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "900000")
    elif what == "no folder":
        (tmp_path / "flight").rmdir()
    elif what == "not to be written":
        keeper.path = str(tmp_path / "flight" / "gone" / "rank_2")
    else:
        torch["dump"] = {"entries": [7], "pg_status": 3}
        monkeypatch.setattr(sys, "last_value", RuntimeError(GLOO), raising=False)
    recorder._at_end(keeper)
    assert not (tmp_path / "flight").exists() or os.listdir(tmp_path / "flight") == []


def test_a_disk_that_hangs_delays_the_end_by_a_moment(
    tmp_path: Path, torch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    children, start = [], recorder._start

    def started(*arguments: Any) -> int:
        children.append(start(*arguments))
        return children[0]

    monkeypatch.setattr(recorder, "_start", started)
    monkeypatch.setattr(recorder, "_COPY", "exec sleep 600")
    torch["dump"] = dump(more="x" * (1 << 20))
    keeper = keep(tmp_path, World())
    began = time.monotonic()
    keeper.write()
    assert time.monotonic() - began < 10 * recorder.LONGEST_S
    [child] = children
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "it is not left behind"


def test_what_writes_holds_nothing_of_the_rank_open(tmp_path: Path) -> None:
    code = """
import os, sys
from hangtop_hook import recorder
recorder._COPY = 'ls /proc/self/fd >"$2"'
end, other = os.pipe()
os.set_inheritable(end, True)
recorder.hand_over(b"data", sys.argv[1] + ".part", sys.argv[1])
"""
    file = tmp_path / "open"
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, env=_with_hook())
    assert set(file.read_text().split()) <= {"0", "1", "2", "3"}, "3 is what ls reads"


def _with_hook() -> dict[str, str]:
    packages = os.path.dirname(os.path.dirname(os.path.abspath(recorder.__file__)))
    return {**os.environ, "PYTHONPATH": packages}
