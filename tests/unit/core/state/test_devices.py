"""GPUs and ports as a node tells of them, folded with limits, and their meters."""

from __future__ import annotations

from typing import Any

import pytest

from hangtop_core.attach.wire import messages
from hangtop_core.state.devices import MAX_DEVICES, MAX_NAME, Devices

AT = 1_800_000_000.0


class Fold:
    """Pieces of one node, two seconds apart."""

    def __init__(self, skew: float = 0.0) -> None:
        self.devices, self.wrong, self.at, self.skew = Devices(), list[str](), AT, skew

    def __call__(self, **parts: Any) -> dict[str, Any]:
        self.at += 2.0
        for fields in parts.get("gpus", {}).values():
            if isinstance(fields, dict):
                fields.setdefault("at", self.at + self.skew)
        piece = messages.decode({"at": self.at, **parts}, messages.WatchPiece)
        return self.devices.fold(piece, self.at, self.skew, self.wrong.append)


BUSY = {"power_w": 610, "power_limit_w": 700, "util": 97, "state": "ok"}
SPINS = {"power_w": 118, "power_limit_w": 700, "util": 100, "state": "ok"}


def test_only_what_changed_is_told_and_the_rest_is_kept() -> None:
    fold = Fold()
    (first,) = fold(gpus={"0": {"uuid": "GPU-1", **BUSY}})["gpus"]
    (second,) = fold(gpus={"0": {"power_w": 118}})["gpus"]
    assert (first.power_w, second.power_w, second.uuid, second.util) == (610, 118, "GPU-1", 97)
    assert second.power_peak_w == 610
    assert fold() == {}
    assert fold.wrong == []


def test_a_gpu_that_spins_does_not_work() -> None:
    fold = Fold()
    for _ in range(3):
        (gpu,) = fold(gpus={"0": dict(SPINS)})["gpus"]
    assert gpu.worked_at is None


@pytest.mark.parametrize(
    "later",
    [
        {"power_w": 610},
        {"power_w": 260},
        {"util": 80},
        {"nvlink_kb": 100_000},
        {"memory_util": 40},
        {"pcie_rx_kb": 900_000},
        {"energy_j": 100 + 2 * 400},
    ],
    ids=lambda later: next(iter(later)) + str(next(iter(later.values()))),
)
def test_meters_that_mean_work(later: dict[str, int]) -> None:
    fold = Fold()
    over = {"pcie_tx_kb": 50_000, "pcie_rx_kb": 100_000}
    fold(gpus={"0": {**SPINS, **over, "nvlink_kb": 10, "energy_j": 100}})
    (gpu,) = fold(gpus={"0": later})["gpus"]
    assert gpu.worked_at == fold.at


@pytest.mark.parametrize(
    ("seen", "works"),
    [
        # Read of an H200 with four ranks over sockets that hung, in KB/s, ten seconds apart.
        (((526_861, 3_218_212), (520_955, 3_215_913)), False),
        (((213_622, 1_287_024), (212_827, 1_274_734)), False),
        (((36_926, 82_210), (36_815, 82_694)), False),
        # The same while they trained.
        (((5_101_000, 2_459_000), (82_711, 2_925_116)), True),
    ],
)
def test_what_changes_over_pcie_counts_and_not_how_much_it_is(
    seen: tuple[tuple[int, int], ...], works: bool
) -> None:
    fold = Fold()
    for sent, received in seen:
        over = {"pcie_tx_kb": sent, "pcie_rx_kb": received}
        (gpu,) = fold(gpus={"0": {**SPINS, **over}})["gpus"]
    assert (gpu.worked_at is not None) == works


def test_polling_a_peer_over_nvlink_is_no_work() -> None:
    fold = Fold()
    fold(gpus={"0": {**SPINS, "nvlink_kb": 10, "energy_j": 100}})
    (gpu,) = fold(gpus={"0": {"nvlink_kb": 500, "energy_j": 100 + 2 * 118}})["gpus"]
    assert gpu.worked_at is None


def test_errors_count_from_when_hangtop_came() -> None:
    fold = Fold()
    link = [3, True, 4, {"crc_data": 40}]
    (gpu,) = fold(gpus={"0": {"links": [link], "ecc_now": 1, "pcie_replays": 7}})["gpus"]
    assert gpu.new_errors == {}
    changed = {"links": [[3, True, 4, {"crc_data": 44, "replay": 2}]], "ecc_now": 2}
    (gpu,) = fold(gpus={"0": changed})["gpus"]
    assert gpu.new_errors == {"link 3 crc_data": 4, "link 3 replay": 2, "ecc": 1}


def test_times_of_xids_are_put_on_the_head_s_clock() -> None:
    fold = Fold(skew=100.0)
    (gpu,) = fold(gpus={"0": {"xids": [[79, AT + 100.0]]}})["gpus"]
    assert [(xid.number, xid.at) for xid in gpu.xids] == [(79, AT)]
    (gpu,) = fold(gpus={"0": {"util": 3}})["gpus"]
    assert gpu.xids[0].at == AT


def test_ports_remember_that_they_were_up_and_what_grew() -> None:
    fold = Fold()
    up = {"kind": "infiniband", "state": "ACTIVE", "errors": {"link_downed": 1}, "sent": 10}
    fold(nics={"mlx5_0/1": up, "eth0": {"state": "down"}})
    down = {"state": "DOWN", "errors": {"link_downed": 2}}
    eth0, port = fold(nics={"mlx5_0/1": down})["nics"]
    assert (port.state, port.was_up, port.new_errors) == ("DOWN", True, {"link_downed": 1})
    assert (eth0.state, eth0.was_up) == ("down", False)
    _, port = fold(nics={"mlx5_0/1": {"sent": 50_000_000}})["nics"]
    assert port.moved_at == fold.at
    fold.at += 3600.0  # in which nothing moves, and only other things are told
    fold()
    _, port = fold(nics={"mlx5_0/1": {"sent": 100_000_000}})["nics"]
    assert port.moved_at == fold.at


def test_what_does_not_fit_is_dropped_and_named() -> None:
    fold = Fold()
    many = {str(n): {} for n in range(MAX_DEVICES + 5)}
    changed = fold(
        nvml={"driver": 5},
        gpus={"x": {}, "-1": {}, **many, "0": {"util": "all", "power_w": -3, "name": "H100"}},
        nics={f"p{n}": {"errors": [1]} for n in range(MAX_DEVICES + 1)},
    )
    assert len(changed["gpus"]) == len(changed["nics"]) == MAX_DEVICES
    assert "nvml" not in changed
    assert (changed["gpus"][0].name, changed["gpus"][0].util) == ("H100", None)
    said = "\n".join(fold.wrong)
    for text in ("nvml: ", "not a GPU, or too many", "GPU 0: util:", "GPU 0: power_w:", "too many"):
        assert text in said


def test_a_node_cannot_set_what_the_head_works_out() -> None:
    (gpu,) = Fold()(gpus={"0": {"worked_at": 1.0, "index": 7, "power_peak_w": 900}})["gpus"]
    assert (gpu.index, gpu.worked_at, gpu.power_peak_w) == (0, None, None)


def test_names_of_ports_are_harmless_and_short() -> None:
    fold = Fold()
    long = "mlx5_0/1\x1b[2J" + "x" * 200
    fold(nics={long: {"kind": "infiniband", "state": "ACTIVE", "errors": {"symbol": 1}}})
    (nic,) = fold(nics={long: {"errors": {"symbol": 3}}})["nics"]
    assert nic.name.startswith("mlx5_0/1xx")
    assert len(nic.name) <= MAX_NAME
    assert (nic.state, nic.new_errors) == ("ACTIVE", {"symbol": 2})
