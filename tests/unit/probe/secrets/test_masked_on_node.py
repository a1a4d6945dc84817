"""What leaves a node is masked there: variables, names of threads, titles, errors, kernel lines."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hangtop_probe.node import kernellog, permission
from hangtop_probe.proc import activity, procfs, rest
from hangtop_probe.secrets.mask import MASK, mask_arguments, mask_value
from hangtop_probe.stacks import stacks
from hangtop_probe.table.table import Table
from hangtop_probe.wire.requests import Refused, Request, failure
from hangtop_probe.wire.server import describe
from hangtop_probe.wire.tools import Tools
from support.processes import wait_until
from support.spied import dump, frame

TOKEN = "h" + "f_" + "aB3x" * 8
PASSWORD = "correct-horse"


def test_no_secret_is_in_the_stacks_that_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = (
        frame("step", f"/data/run-{TOKEN}/train.py", password=repr(PASSWORD), lr="0.1"),
        frame("main", "/train.py", config=repr({"db": {"password": PASSWORD}, "n": 1})),
        frame("run", "/train.py", url=f"'https://ada:{PASSWORD}@host/x'", x=repr(TOKEN)),
    )
    sample = stacks.parse(dump(*frames, thread_name=f"upload with {TOKEN}"))
    monkeypatch.setattr(stacks, "sample", lambda *options: sample)
    monkeypatch.setattr(rest, "mark", lambda pid: None)
    sent: list[Any] = []
    request = Request(
        {"id": 1, "op": "stacks", "pids": [os.getpid()], "locals": True},
        lambda message, first: sent.append(message),
    )
    stacks.Sampler(Tools(), Table(permission.rights())).handle(request)
    [message] = sent
    text = json.dumps(message)
    assert TOKEN not in text
    assert PASSWORD not in text
    [thread] = message["data"]["threads"]
    assert thread["name"] == f"upload with {MASK}"
    values = [{one["name"]: one["value"] for one in variables} for variables in thread["locals"]]
    assert values[0] == {"password": MASK, "lr": "0.1"}
    assert values[1]["config"] == f"{{'db': {{'password': '{MASK}'}}, 'n': 1}}"
    [rows] = message["data"]["stacks"].values()
    assert [row[1] for row in rows] == [f"/data/run-{MASK}/train.py", "/train.py", "/train.py"]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("token", "'x'", MASK),
        ("api_key", repr(TOKEN), MASK),
        ("self.password", "'x'", MASK),
        ("headers", "{'Authorization': 'Bearer x'}", f"{{'Authorization': 'Bearer {MASK}'}}"),
        ("key", "'layers.0.attn.weight'", "'layers.0.attn.weight'"),
        ("key", repr(TOKEN), f"'{MASK}'"),
        ("token", "17", "17"),
        ("token", "<Token object at 0x7f00>", "<Token object at 0x7f00>"),
        ("password", "None", "None"),
        ("batch", "<Tensor at 0x7f00>", "<Tensor at 0x7f00>"),
        ("max_tokens", "'4096'", "'4096'"),
        ("args", "Namespace(token='x', lr=0.1)", f"Namespace(token='{MASK}', lr=0.1)"),
        ("path", "'/data/shards/part-0001.parquet'", "'/data/shards/part-0001.parquet'"),
    ],
)
def test_variables_are_masked_by_name_and_by_what_they_hold(
    name: str, value: str, shown: str
) -> None:
    masked = mask_value(name, value)
    if "Bearer" in shown:
        assert "Bearer x" not in masked
    else:
        assert masked == shown


def test_names_of_real_threads_are_masked() -> None:
    """The kernel keeps 15 characters, of a token what comes first."""
    name, ended = TOKEN[:15], threading.Event()
    named = threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        ended.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(named.is_set)
        tid = thread.native_id or 0
        row = activity.read_thread(f"/proc/{os.getpid()}/task/{tid}", tid)
        assert row is not None
        assert row.name == MASK
        assert activity.thread_names(os.getpid())[tid] == MASK
        stat = procfs.read_stat(os.getpid())
        assert stat is not None
        assert MASK not in stat.comm
    finally:
        ended.set()
        thread.join()


def test_titles_that_processes_give_themselves_are_masked() -> None:
    title = f"worker 3 --token {PASSWORD} of job 7"
    assert mask_arguments(procfs.parse_cmdline(title.encode() + b"\0" * 40)) == (
        f"worker 3 --token {MASK} of job 7",
    )


def test_errors_are_masked() -> None:
    assert PASSWORD not in failure("error", f"no answer from https://ada:{PASSWORD}@h")["text"]
    assert TOKEN not in Refused("error", f"{TOKEN} is no path").message()["text"]
    error = describe(ValueError(f"bad header Authorization: Bearer {PASSWORD}"))
    assert PASSWORD not in failure("error", error)["text"]
    assert failure("missing", "py-spy is not on this node", "get it") == {
        "kind": "missing",
        "text": "py-spy is not on this node",
        "fix": "get it",
    }


def test_kernel_lines_are_masked() -> None:
    line = kernellog.parse(b"6,1,0,-;audit: cmd=curl -u ada:%s" % PASSWORD.encode(), 0.0)
    assert line is not None
    assert line[1] == f"audit: cmd=curl -u ada:{MASK}"
    xid = b"3,1,0,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=3430, GPU has fallen off the bus."
    kept = kernellog.parse(xid, 0.0)
    assert kept is not None
    assert kept[1] == xid.decode().partition(";")[2]
