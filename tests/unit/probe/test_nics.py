"""Reading network ports from a tree that has the form of sysfs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hangtop_probe import nics
from hangtop_probe.hardware import Hardware
from support.sysfs import interface, rdma_port, write

if TYPE_CHECKING:
    from pathlib import Path

    from hangtop_probe.gpus import Gpus


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
