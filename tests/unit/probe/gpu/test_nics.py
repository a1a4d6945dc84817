"""Reading network ports from a tree that has the form of sysfs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from hangtop_probe.gpu import ethtool, nics
from hangtop_probe.gpu.hardware import Hardware
from support.sysfs import interface, rdma_port, write

if TYPE_CHECKING:
    from hangtop_probe.gpu.gpus import Gpus


class NoGpus:
    """A node without any."""

    about: dict[str, Any] = {}  # noqa: RUF012  # nobody writes to it

    def start(self) -> None:
        """Nothing to start."""

    def snapshot(self) -> dict[int, dict[str, Any]]:
        """None."""
        return {}


def test_ports_and_interfaces(tmp_path: Path) -> None:
    rdma_port(tmp_path, "mlx5_0", symbol_error=4)
    rdma_port(tmp_path, "mlx5_1", state="1: DOWN", link_layer="Ethernet", link_downed=2)
    (tmp_path / "class/infiniband/mlx5_1/device/net/eth1").mkdir(parents=True)
    interface(tmp_path, "eth1")
    write(tmp_path / "class/net/lo", operstate="unknown")
    found = nics.read(str(tmp_path))
    assert list(found) == ["eth1", "mlx5_0/1", "mlx5_1/1"]
    first, down, plain = found["mlx5_0/1"], found["mlx5_1/1"], found["eth1"]
    assert (first["kind"], first["state"], first["physical"]) == ("infiniband", "ACTIVE", "LinkUp")
    assert (first["rate"], first["numa"]) == ("400 Gb/sec (4X NDR)", 1)
    assert (first["sent"], first["received"]) == (4000, 8000)
    assert first["errors"] == {
        "symbol_error": 4, "link_downed": 0, "out_of_sequence": 0, "local_ack_timeout_err": 0,
    }  # fmt: skip
    assert (down["kind"], down["state"], down["interfaces"]) == ("roce", "DOWN", ["eth1"])
    assert (plain["state"], plain["rate"], plain["rdma"]) == ("up", "100000 Mb/s", "mlx5_1")
    assert plain["errors"] == {"rx_errors": 0, "rx_dropped": 7, "carrier_down": 3}
    assert plain["numa"] is None


def test_pause_frames_of_a_roce_port_are_asked_of_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the names that mlx5's driver gives its counters; only the driver is a double."""
    asked = []

    def counters(interface: str) -> dict[str, int]:
        asked.append(interface)
        if interface == "gone":
            raise OSError
        return {
            "rx_packets": 9, "rx_prio3_pause": 5, "rx_prio4_pause": 2, "tx_prio3_pause": 4,
            "rx_prio3_pause_duration": 70, "rx_prio3_pause_transition": 3,
            "tx_pause_storm_error_events": 1,
        }  # fmt: skip

    monkeypatch.setattr(ethtool, "counters", counters)
    for device, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet"), ("mlx5_2", "Ethernet")):
        rdma_port(tmp_path, device, link_layer=layer)
        name = "gone" if device == "mlx5_2" else f"eth{device[-1]}"
        (tmp_path / f"class/infiniband/{device}/device/net/{name}").mkdir(parents=True)
    found = nics.read(str(tmp_path))
    assert asked == ["eth1", "gone"]
    told = {"pause_received": 7, "pause_sent": 4, "pause_storms": 1}
    assert told.items() <= found["mlx5_1/1"]["errors"].items()
    assert not set(told) & {*found["mlx5_0/1"]["errors"], *found["mlx5_2/1"]["errors"]}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rx_pfc_ena_frames_pri3", {"pause_received": 6}),  # bnxt_en
        ("tx_priority_3_xoff.nic", {"pause_sent": 6}),  # ice
        ("rx_priority_3_xon.nic", {}),
        ("rx_pause_ctrl_phy", {"pause_received": 6}),
    ],
)
def test_names_of_other_drivers(name: str, told: dict[str, int]) -> None:
    assert ethtool.pauses_of({name: 6}) == told


def test_the_counters_of_a_real_driver() -> None:
    """Of a pair of virtual interfaces; the number of the other end is among them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip")
    names = [f"ht{os.getpid() % 1_000_000}{end}" for end in "ab"]
    made = subprocess.run(
        ["ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1]], check=False
    )
    if made.returncode:
        pytest.skip("this kernel has no veth")
    try:
        other = int(Path(f"/sys/class/net/{names[1]}/ifindex").read_text())
        assert ethtool.counters(names[0])["peer_ifindex"] == other
        assert ethtool.pauses(names[0]) == {}
    finally:
        subprocess.run(["ip", "link", "del", names[0]], check=True)
    with pytest.raises(OSError, match="No such device"):
        ethtool.counters(names[0])


def test_an_interface_without_a_cable_has_no_speed(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", state="down", speed=-1)
    assert nics.read(str(tmp_path))["eth0"]["rate"] is None


def test_this_machine_is_read_without_an_error() -> None:
    for port in nics.read().values():
        assert port["kind"] in ("infiniband", "roce", "ethernet")


def test_only_changes_are_sent(tmp_path: Path) -> None:
    port = rdma_port(tmp_path, "mlx5_0")
    machine = Hardware(cast("Gpus", NoGpus()), root=str(tmp_path))
    assert machine.changes()["nics"]["mlx5_0/1"]["rate"] == "400 Gb/sec (4X NDR)"
    assert machine.changes() == {}
    write(port, state="1: DOWN")
    machine.due()
    assert machine.changes() == {"nics": {"mlx5_0/1": {"state": "DOWN"}}}
    (port / "state").unlink()
    for file in sorted(port.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    port.rmdir()
    machine.due()
    assert machine.changes() == {"nics": {"mlx5_0/1": {"state": "gone"}}}
