"""What is taken out of a capture: secrets always, paths and hosts where asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.capture import counted
from hangtop_core.capture.form import CAME_MASKED
from hangtop_core.capture.redact import Redaction, Redactor
from hangtop_core.model.snapshot import Job, Node, Snapshot
from hangtop_probe.secrets.mask import MASK, mask_arguments, mask_text
from support.plants import Plant, leaks, plants

ALL = plants()


@pytest.mark.parametrize("one", ALL, ids=[one.kind for one in ALL])
def test_every_kind_of_secret_is_masked_wherever_it_stands(one: Plant) -> None:
    redactor = Redactor(Redaction())
    places = {
        "text": one.text,
        "line": f"[rank0]: 2026-01-01 10:00:00 INFO {one.text} (step 3)",
        "cmdline": ["python", "train.py", *one.arguments, "--lr", "3e-4"],
        "env": {"TORCH_X": one.text},
        "lines": f"before\n{one.text}\nafter".split("\n"),
        "frames": [{"name": "x", "value": repr(one.text)}],
    }
    shown = repr(redactor.data(places))
    assert leaks(one, shown) == []
    assert MASK in shown
    assert "before" in shown
    assert "3e-4" in shown
    assert sum(redactor.counts.values()) >= 4, "what was masked is counted"


@pytest.mark.parametrize("one", ALL, ids=[one.kind for one in ALL])
def test_no_secret_leaves_a_node_in_a_log_or_a_command_line(one: Plant) -> None:
    text = f"step 1\n{one.text}\nstep 2"
    masked = mask_text(text)
    assert leaks(one, masked) == []
    assert masked.count("\n") == text.count("\n"), "lines stay lines"
    assert leaks(one, " ".join(mask_arguments(["python", *one.arguments]))) == []


def test_the_rest_of_a_key_that_began_before_the_window_is_masked() -> None:
    key = next(one for one in ALL if one.kind == "RSA PRIVATE KEY")
    rest = key.text.split("\n", 2)[2]
    assert leaks(key, mask_text(f"{rest}\nstep 7")) == []
    assert leaks(key, Redactor(Redaction()).text(f"{rest}\nstep 7")) == []


def test_variables_by_their_names() -> None:
    redactor = Redactor(Redaction())
    local = {"name": "wandb_api_key", "value": "'tr0ub4dor'", "argument": False}
    assert redactor.data(local)["value"] == MASK
    assert redactor.data({"name": "num_tokens", "value": "4096"})["value"] == "4096"
    assert redactor.data({"name": "token", "value": "None"})["value"] == "None"
    assert redactor.data({"env": {"HF_TOKEN": "x9", "RANK": "3"}}) == {
        "env": {"HF_TOKEN": MASK, "RANK": "3"}
    }
    assert redactor.counts == {"local variable": 1, "variable": 1}


def test_what_is_masked_already_is_told_apart_and_counted_once() -> None:
    redactor = Redactor(Redaction())
    assert redactor.text(f"--token={MASK} --steps 3") == f"--token={MASK} --steps 3"
    assert redactor.counts == {CAME_MASKED: 1}


def test_what_was_taken_out_is_told_in_words() -> None:
    redactor = Redactor(Redaction(paths=True))
    redactor.text(f"--token={MASK} password=hunter2 api_key=hunter3 of /home/ada/x.py")
    assert counted(redactor.counts, "on the nodes") == (
        "secrets masked in 3 places: on the nodes (1), named value (2)",
        "replaced by others: names of folders (1)",
    )
    assert counted({}, "on the nodes") == ()


def test_folders_get_other_names_and_files_of_python_keep_theirs() -> None:
    redactor = Redactor(Redaction(paths=True))
    data = redactor.data(
        {
            "file": "/home/ada/secret-project/train.py",
            "short": "secret-project/train.py",
            "cwd": "/home/ada/secret-project",
            "library": "/home/ada/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
            "proc": "/proc/4711/fd/3",
            "text": "rank 2 waits at secret-project/train.py:41 and/or reads n/a",
        }
    )
    shown = repr(data)
    assert "ada" not in shown
    assert "secret-project" not in shown
    assert data["file"].endswith(f"/{data['short']}")
    assert data["text"].startswith(f"rank 2 waits at {data['short']}:41"), "the same everywhere"
    assert data["file"].startswith(data["cwd"] + "/")
    assert data["file"].endswith("/train.py")
    assert data["library"].endswith("/lib/python3.12/site-packages/torch/nn/modules/module.py")
    assert data["proc"] == "/proc/4711/fd/3"
    assert data["text"].endswith("/train.py:41 and/or reads n/a")


def test_hosts_get_other_names_that_stay_the_same() -> None:
    redactor = Redactor(Redaction(hosts=True))
    nodes = tuple(
        Node(f"gpu{n:02}", hostname=f"gpu{n:02}.lab.example", addresses=(f"10.1.0.{n}",))
        for n in (1, 2, 3)
    )
    redactor.learn([Snapshot(0.0, 0.0, 1, nodes=nodes)])
    data = redactor.data(
        {
            "name": "gpu02",
            "gpu02:4711": "x",
            "host": "gpu02.lab.example:29500",
            "address": "10.1.0.2:29500",
            "again": "peer 10.1.0.2 closed",
            "folded": "gpu[01-02] lost",
            "local": "127.0.0.1 localhost 0.0.0.0 ::1",
            "six": "[fd00:1::2]:29500",
            "file": "/data/gpu02.log gpu02.log gpu02_1.txt run-gpu02-3 NCCL 2.27.3",
        }
    )
    shown = repr(data)
    assert "gpu" not in shown
    assert "lab.example" not in shown
    assert "10.1" not in shown
    assert "fd00" not in shown
    assert data["name"] == "node-2"
    assert data["node-2:4711"] == "x"
    assert data["host"] == "node-2:29500"
    assert data["address"].split(":")[0] in data["again"]
    assert data["folded"] == "node-[1-2] lost"
    assert data["local"] == "127.0.0.1 localhost 0.0.0.0 ::1"
    assert data["file"].startswith("/data/node-2.log node-2.log node-2_1.txt run-node-2-3 ")
    assert data["file"].endswith("NCCL 2.27.3")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpu[01-02].lab.example", "node-[1-2]"),
        ("lost gpu[01-02].", "lost node-[1-2]."),
        ("gpu[01-02]-ib", "node-[1-2]-ib"),
        ("train-gpu[01-02].log", "train-node-[1-2].log"),
        ("r[1-2]n[1-2]", "host,node-[3-4]"),
        ("r1n[1-2]", "host,node-3"),
        ("gpu[0-9999999]", "host"),
        ("loss[8,4] of layer[0-3]", "loss[8,4] of layer[0-3]"),
    ],
)
def test_names_of_hosts_that_are_drawn_together(text: str, shown: str) -> None:
    redactor = Redactor(Redaction(hosts=True))
    redactor.learn_hosts(["gpu01.lab.example", "gpu02", "r1n1", "r2n2"])
    assert redactor.text(text) == shown
    again = Redactor(Redaction(hosts=True))
    again.learn_hosts(["node-1", "node-2", "node-3", "node-4"])
    assert again.text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach {}.",
        "cannot reach {}: it hangs",
        "({}), {}; {}...",
        "{}\n{}",
    ],
)
@pytest.mark.parametrize("address", ["10.0.0.7", "fd00:1::7"])
def test_addresses_may_end_a_sentence(text: str, address: str) -> None:
    redactor = Redactor(Redaction(hosts=True))
    shown = redactor.text(text.replace("{}", address))
    assert address not in shown
    new = redactor.text(address)
    assert shown == text.replace("{}", new)


@pytest.mark.parametrize("port", ["29500", "2950"])
@pytest.mark.parametrize("address", ["fd00:5::1", "fd00:1:2:3:4:5:6:7"])
def test_an_address_with_a_port_and_no_brackets_is_taken_out(address: str, port: str) -> None:
    redactor = Redactor(Redaction(hosts=True))
    shown = redactor.text(f"store at {address}:{port} is gone")
    assert "fd00" not in shown
    assert redactor.text(shown) == shown


def test_numbers_stay_also_where_a_host_is_called_so() -> None:
    redactor = Redactor(Redaction(hosts=True))
    nodes = (Node("1234"), Node("77", hostname="77.lab.example"), Node("gpu01"))
    redactor.learn([Snapshot(0.0, 0.0, 1, nodes=nodes)])
    data = {
        "1234:4711": "rank 77 of pid 1234, shape[1234] [1234-1235] run-1234.log 1234.5",
        "hostname": "77.lab.example",
        "name": "gpu01",
    }
    assert redactor.data(data) == {**data, "hostname": "node-1", "name": "node-2"}
    assert counted(redactor.counts, "")[-1] == "not replaced: names of hosts that are numbers (2)"


def test_versions_and_names_in_code_are_no_addresses() -> None:
    redactor = Redactor(Redaction(hosts=True))
    text = "1.2.3.4.5 c::d::Foo aa:bb:cc:dd:ee:ff 11:17:50:048 10.0.0.7x"
    assert redactor.text(text) == text


def test_hosts_that_only_the_scheduler_names_get_other_names() -> None:
    redactor = Redactor(Redaction(hosts=True))
    nodes = (Node("gpu01.lab.example", hostname="gpu01.lab.example"),)
    job = Job("k", "train", "srun", None, 2, None, hosts=("gpu01", "away07"))
    redactor.learn([Snapshot(0.0, 0.0, 1, nodes=nodes, jobs=(job,))])
    assert redactor.text("gpu01 and away07") == "node-1 and node-2"


def test_words_that_are_also_names_of_hosts_stay_in_code() -> None:
    redactor = Redactor(Redaction(hosts=True))
    redactor.learn_hosts(["train", "w1"])
    code = "train.py:3 (train_step) at w12 on train-rack w1"
    assert redactor.text(code) == "train.py:3 (train_step) at w12 on node-1-rack node-2"


def test_programs_and_what_is_everywhere_keep_their_names() -> None:
    redactor = Redactor(Redaction(paths=True))
    text = "/opt/acme/bin/py-spy /usr/bin/strace /root/.local/state/hangtop/strace/x"
    assert redactor.text(text) == (
        "/opt/folder-1/bin/py-spy /usr/bin/strace /root/.local/state/hangtop/strace/folder-2"
    )
    assert redactor.text(redactor.text(text)) == redactor.text(text)


TEXT = st.text(max_size=60)


@given(st.recursive(TEXT, lambda one: st.lists(one) | st.dictionaries(TEXT, one), max_leaves=8))
def test_any_data_can_be_redacted(data: object) -> None:
    redactor = Redactor(Redaction(paths=True, hosts=True))
    repr(redactor.data(data)).encode()


def test_ordinary_texts_stay_as_they_are() -> None:
    redactor = Redactor(Redaction())
    for text in (
        "all_reduce #17 [[8, 4]] Float at trainer.py:98 (Trainer.sync_gradients)",
        "step 1200 loss=2.31 tokens/s 18234.5 max_tokens=4096 lr=3e-4",
        "/home/Ada1/project/checkpoints/run7/model-00012-of-00030.safetensors",
        "NCCL INFO Channel 00/02 : 0[0] -> 1[1] via P2P/CUMEM",
        "Killed process 4711 (python3) total-vm:1234kB, anon-rss:99kB",
        "key 7 of 9: keyboard, monkey=3, tokenizer=meta-llama/Llama-3",
        "GPU-8f6f2a54-1c1f-4c8e-b5bd-5a3d0f3b6a1e 0000:1b:00.0",
        "torch.distributed.elastic.agent.server.api:api.py:900 sha256=abc",
    ):
        assert redactor.text(text) == text
    assert redactor.counts == {}
