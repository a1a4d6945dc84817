"""Reading GPUs through the real pynvml from a double of NVIDIA's library (see support/nvml).

No GPU is needed; that a real library answers alike has to be seen where one is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

import hangtop_probe
from hangtop_probe.gpu import gpus
from hangtop_probe.gpu.hardware import Hardware
from hangtop_probe.wire.tools import Tools
from support import nvml, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = nvml.needs_compiler


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def double(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.Double:
    made = nvml.Double(tmp_path, library)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def tools() -> Iterator[Tools]:
    made = Tools()
    yield made
    made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of silence in a second."""
    monkeypatch.setattr(gpus, "SILENCE", 0.5)
    monkeypatch.setattr(gpus, "FIRST_PAUSE", 0.05)


def wait_until(condition: Callable[[], object]) -> bool:
    return processes.wait_until(lambda: bool(condition()), limit_s=processes.PATIENCE)


def read_once() -> dict[int, dict[str, Any]]:
    done = subprocess.run(gpus.command(0), capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["gpu"]: line["fields"] for line in lines if "fields" in line}


def once() -> dict[str, Any]:
    return gpus.Gpus(Tools()).once(threading.Event())


def test_a_healthy_gpu_and_one_that_spins(double: nvml.Double) -> None:
    double.say(g1_util=100, g1_power=118400, g1_pids=f"{os.getpid()},1", g1_reasons="0x20")
    first, second = read_once().values()
    assert (first["state"], first["bus_id"], first["name"]) == (
        "ok",
        "0000:1b:00.0",
        "Double of a GPU",
    )
    assert (first["power_w"], first["power_limit_w"], first["util"]) == (520, 700, 97)
    assert first["memory_total"] == 85520809984
    assert [row[:3] for row in first["links"]] == [[n, True, 4] for n in range(18)]
    assert (first["fabric"], first["pcie_gen"], first["pcie_width"]) == ("completed", 5, 16)
    assert (second["util"], second["power_w"], second["reasons"]) == (100, 118, 0x20)
    assert second["processes"] == [[os.getpid(), 60000000000], [1, 60000000000]]
    assert first["missing"] == second["missing"] == {}


def test_what_is_not_supported_is_named_and_the_rest_is_there(double: nvml.Double) -> None:
    # 3 is NVML_ERROR_NOT_SUPPORTED, 4 NVML_ERROR_NO_PERMISSION
    double.say(
        count=1, nvmlDeviceGetRemappedRows="error=3", nvmlDeviceGetTotalEnergyConsumption="error=4"
    )
    (fields,) = read_once().values()
    assert fields["remapped"] is None
    assert fields["energy_j"] is None
    assert fields["missing"] == {
        "remapped": "Not Supported",
        "energy_j": "Insufficient Permissions",
    }
    assert fields["power_w"] == 520


def test_defects_are_read(double: nvml.Double) -> None:
    double.say(count=1, ecc_now=2, ecc_ever=5, remap_pending=1, link7_down=1, link3_crc_data=44)
    double.say(fabric=2, replays=9)
    (fields,) = read_once().values()
    assert (fields["ecc_now"], fields["ecc_ever"]) == (2, 5)
    assert fields["remapped"]["pending"] is True
    assert fields["links"][7] == [7, False, 4, {}]
    assert fields["links"][3] == [3, True, 4, {"crc_data": 44}]
    assert (fields["fabric"], fields["pcie_replays"]) == ("in progress", 9)


def test_mig_devices_have_their_own_processes(double: nvml.Double) -> None:
    double.say(count=1, mig=2, g0_mig1_pids="77")
    (fields,) = read_once().values()
    assert fields["util"] is None
    assert fields["missing"]["util"] == "Not Supported"
    first, second = fields["mig_devices"]
    assert (first["uuid"], first["gpu_instance"]) == ("MIG-0d0b1e00-0000-0000-0000-000000000000", 1)
    assert second["processes"] == [[77, 60000000000]]


@pytest.mark.parametrize(("code", "state"), [(15, "lost"), (16, "reset-required"), (999, "error")])
def test_a_gpu_that_is_lost_does_not_hide_the_others(
    double: nvml.Double, code: int, state: str
) -> None:
    double.say(count=3, g1_all=f"error={code}")
    found = read_once()
    assert [found[index]["state"] for index in range(3)] == ["ok", state, "ok"]


def test_the_driver_as_a_whole(double: nvml.Double, monkeypatch: pytest.MonkeyPatch) -> None:
    said = once()
    assert (said["driver"], said["cuda"], said["gpus"], said["error"]) == (
        "575.51.03",
        "12.9",
        2,
        None,
    )
    double.say(g1_all="error=15")
    assert once()["error"] == "GPU 1: GPU is lost"
    double.say(nvmlInitWithFlags="error=9")
    assert once()["error"] == "NVML: Driver Not Loaded (9)"
    double.say(nvmlInitWithFlags="hang")
    monkeypatch.setattr(gpus, "SILENCE", 0.5)
    assert once()["error"] == "NVML gave no answer in 0.5 s"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert "cannot open shared object file" in once()["missing"]


def test_changes_flow_and_xids_come_once(double: nvml.Double, tools: Tools) -> None:
    double.say(g0_util=100)
    machine = Hardware(gpus.Gpus(tools, interval=0.05), root="/nowhere")
    pieces: list[dict[str, Any]] = []

    def seen(kind: str, gpu: str, field: str) -> list[Any]:
        pieces.append(machine.changes())
        return [p[kind][gpu][field] for p in pieces if field in p.get(kind, {}).get(gpu, {})]

    assert wait_until(lambda: seen("gpus", "0", "util") == [100])
    assert wait_until(lambda: seen("gpus", "1", "name") == ["Double of a GPU"])
    double.say(g0_util=3, xids="1:79")
    assert wait_until(lambda: seen("gpus", "0", "util") == [100, 3])
    assert wait_until(lambda: seen("gpus", "1", "xids"))
    ((xid, at),) = seen("gpus", "1", "xids")[0]
    assert (xid, at > 1.7e9) == (79, True)
    double.say(g1_all="error=15", xids="1:79,1:154")
    assert wait_until(lambda: "lost" in seen("gpus", "1", "state"))
    assert wait_until(lambda: [one[0] for one in seen("gpus", "1", "xids")[-1]] == [79, 154])
    assert not seen("gpus", "0", "xids")
    assert len(seen("gpus", "1", "name")) == 1
    machine.restart()
    pieces.clear()
    assert seen("gpus", "1", "name")


def test_a_gpu_whose_calls_never_return_is_named_and_left_out(
    double: nvml.Double, tools: Tools, quick: None
) -> None:
    made = gpus.Gpus(tools, interval=0.05)
    double.say(count=3)
    made.start()
    assert wait_until(lambda: len(made.snapshot()) == 3)
    double.say(g1_nvmlDeviceGetPowerUsage="hang", g2_util=11)
    assert wait_until(lambda: made.snapshot()[1].get("state") == "silent")
    assert made.snapshot()[1]["error"] == "NVML gave no answer for 0.5 s, asked for GPU 1"
    assert made.snapshot()[1]["bus_id"] == "0000:1c:00.0"
    assert wait_until(lambda: made.snapshot()[2].get("util") == 11)
    made.stop()
    assert made.left == []


def test_children_that_cannot_be_killed_are_left_and_said(
    double: nvml.Double, tools: Tools, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing here can make a process that SIGKILL does not end, so that it did not is pretended.
    really_end, started = tools.end, []
    monkeypatch.setattr(tools, "end", lambda process: started.append(process) or False)
    double.say(nvmlInitWithFlags="hang")
    made = gpus.Gpus(tools, interval=0.05)
    made.start()
    assert wait_until(lambda: len(made.left) == gpus.MAX_LEFT)
    assert made._thread is not None
    made._thread.join(processes.PATIENCE)
    error = made.about["error"]
    assert f"process {made.left[-1]} cannot be killed and is left in the driver" in error
    assert "after 3 of those it is not asked any more" in error
    for process in started:
        assert really_end(process)


def test_no_process_is_started_where_there_is_no_driver(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpus.driver_loaded():
        pytest.skip("this machine has NVIDIA's driver")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    made = gpus.Gpus(tools)
    made.start()
    assert made._thread is None
    assert tools.pids() == set()


def test_a_child_has_what_it_needs_when_the_probe_is_only_in_memory(double: nvml.Double) -> None:
    """Imported as `boot` does where nothing can be kept on disk: modules without a file."""
    double.say(count=3)
    script = (
        "import os, sys, threading\n"
        "folder, place = sys.argv[1:]\n"
        "sys.path.insert(0, os.path.dirname(folder))\n"
        "from hangtop_probe.wire import cachedir, pieces\n"
        "files = cachedir.read_tree(folder)\n"
        "for name in [name for name in sys.modules if name.startswith('hangtop_probe')]:\n"
        "    del sys.modules[name]\n"
        "sys.path[0] = place\n"
        "sys.meta_path.insert(0, pieces.Memory('hangtop_probe', files))\n"
        "from hangtop_probe.gpu import gpus; from hangtop_probe.wire import tools\n"
        "assert not hasattr(gpus, '__file__')\n"
        "print(gpus.Gpus(tools.Tools()).once(threading.Event())['gpus'])\n"
    )
    folders = [os.path.dirname(str(one.__file__)) for one in (hangtop_probe, pynvml)]
    argv = [sys.executable, "-I", "-S", "-c", script, *folders]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr


def test_what_a_library_prints_without_end_is_not_kept(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = 'head -c 30000000 /dev/zero; echo; echo \'{"gpu": 0, "fields": {"util": 3}}\'; sleep 100'
    monkeypatch.setattr(gpus, "command", lambda *_: ["sh", "-c", says])
    monkeypatch.setattr(gpus, "expected", lambda: True)
    made = gpus.Gpus(tools)
    tracemalloc.start()
    try:
        made.start()
        assert wait_until(lambda: made.snapshot().get(0, {}).get("util") == 3)
        assert tracemalloc.get_traced_memory()[1] < 10 * gpus.MAX_LINE
    finally:
        tracemalloc.stop()
    made.stop()
