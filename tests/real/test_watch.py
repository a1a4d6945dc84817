"""`hangtop watch` on a job that steps slowly, hangs, moves again and ends."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.capture import load
from support.documents import misfits
from support.launch import torchrun
from support.processes import PATIENCE, children, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
WATCH = [sys.executable, "-m", "hangtop", "watch", "--interval", "1"]


@contextlib.contextmanager
def watch(*options: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([*WATCH, *options], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Story:
    """What two watchers told of one job: one until its end, one until its first hang."""

    def __init__(self, place: Path) -> None:
        self.place = place
        fifo = place / "fifo"
        os.mkfifo(fifo)
        script = place / "tell"
        script.write_text(f"#!/bin/sh\nenv | grep ^HANGTOP_ >> {place}/told\necho told $1\n")
        script.chmod(0o700)
        with torchrun("late", str(fifo), nproc=2) as job:
            these = ("--pid", str(job.pid), "--hang-after", "5")
            on_hang = f"{script} 'two words'"
            redacted = ("--redact-paths", "--redact-hosts", "--output", str(place / "redacted"))
            until_exit = ("--until-exit", "--json", "--output", str(place / "hangs"))
            with (
                watch("--once", *redacted, *these) as once,
                watch(*until_exit, "--on-hang", on_hang, *these) as whole,
            ):
                self.once, self.once_err = once.communicate(timeout=2 * PATIENCE)
                assert whole.stdout is not None
                self.events: list[dict[str, Any]] = []
                for line in whole.stdout:
                    self.events.append(json.loads(line))
                    if self.events[-1]["event"] == "on-hang":
                        fifo.open("w").close()
                    if self.events[-1]["event"] == "resumed":
                        (place / "fifo.end").touch()
                self.err = whole.stderr.read() if whole.stderr else ""
                whole.wait(PATIENCE)
            self.statuses = once.returncode, whole.returncode

    def one(self, event: str) -> dict[str, Any]:
        found = [one for one in self.events if one["event"] == event]
        assert len(found) == 1, self.events
        return found[0]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("watch"))


def test_what_happened_is_told_in_order_and_once(story: Story) -> None:
    told = [one["event"] for one in story.events]
    assert told == ["job", "hang", "written", "on-hang", "resumed", "ended"], story.err
    assert [misfits(one) for one in story.events] == [[]] * len(story.events)
    assert story.one("job")["job"]["world_size"] == 2


def test_the_slow_steps_before_were_no_hang(story: Story) -> None:
    began = (story.place / "fifo.opens").stat().st_mtime
    hang = story.one("hang")
    assert datetime.fromisoformat(hang["at"]).timestamp() >= began + 5.0 - 1.0
    assert hang["diagnosis"]["hung_for_s"] >= 5.0
    assert hang["diagnosis"]["verdicts"][0]["culprits"][0]["rank"] == 1
    assert story.one("resumed")["after_s"] >= hang["diagnosis"]["hung_for_s"]


def test_the_command_was_run_once_and_told_what_is_known(story: Story) -> None:
    told = dict(line.split("=", 1) for line in (story.place / "told").read_text().splitlines())
    hang = story.one("hang")
    verdict = hang["diagnosis"]["verdicts"][0]
    assert (told["HANGTOP_CAUSE"], told["HANGTOP_RANKS"]) == (verdict["cause"], "1")
    assert (told["HANGTOP_STATUS"], told["HANGTOP_VICTIMS"]) == ("10", "0")
    assert told["HANGTOP_JOB"] == hang["job"]["key"]
    assert (story.place / "told").read_text().count("HANGTOP_CAUSE=") == 1
    assert "told two words" in story.err
    assert Path(told["HANGTOP_DIRECTORY"]).parent == story.place / "hangs"


def test_what_was_written_is_the_hang(story: Story) -> None:
    directory = Path(story.one("written")["directory"])
    assert [directory] == list((story.place / "hangs").iterdir())
    diagnosis = json.loads((directory / "diagnosis.json").read_text())
    assert diagnosis == story.one("hang")["diagnosis"]
    assert diagnosis["verdicts"][0]["cause"] in (directory / "diagnosis.txt").read_text()
    stacks = (directory / "stacks.txt").read_text()
    assert stacks.startswith("2 ranks of 2 gave a stack")
    assert "late (" in stacks
    capture = load(str(directory / "hang.hangtop"))
    kept = capture.pictures[-1].snapshot
    assert len(capture.pictures) > 1
    assert [rank.sample is not None for rank in kept.jobs[0].ranks] == [True, True]


def test_once_ends_with_the_first_hang(story: Story) -> None:
    assert story.statuses == (10, 0), (story.once_err, story.err)
    assert " hangs\nHUNG for " in story.once
    assert "Traceback" not in story.once_err + story.err


def test_what_is_to_be_handed_on_has_other_names_everywhere(story: Story) -> None:
    (directory,) = (story.place / "redacted").iterdir()
    texts = {one.name: one.read_text() for one in directory.iterdir() if one.suffix != ".hangtop"}
    texts |= {"printed": story.once, "stderr": story.once_err}
    texts["capture"] = gzip.decompress((directory / "hang.hangtop").read_bytes()).decode()
    own = re.compile(rf"\b({re.escape(os.uname().nodename)}|{re.escape(story.place.name)})\b")
    for name, text in texts.items():
        assert own.search(text) is None, (name, text)
    # The same folder, and node, has the same name in all of them.
    del texts["stderr"]
    named = [set(re.findall(r"folder-\d+(?=/gloo_job)", text)) for text in texts.values()]
    assert len(named[0]) == 1, texts
    assert named == [named[0]] * len(named)
    assert all("node-1" in text for name, text in texts.items() if "diagnosis" in name)
    assert f"/{directory.name}" in story.once
    assert load(str(directory / "hang.hangtop")).header.redacted == ("secrets", "paths", "hosts")


def test_without_a_job_it_waits_until_it_is_told_to_stop() -> None:
    key = ("--job-key", "no-such-job")
    with watch("--wait-for-job", "2", *key) as limited, watch("--json", *key) as waiting:
        with watch("--wait-for-job", "2", "--pid", str(waiting.pid)) as no_rank:
            out, what = no_rank.communicate(timeout=PATIENCE)
        _, why = limited.communicate(timeout=PATIENCE)
        probing = wait_until(lambda: bool(children(waiting.pid)))
        waiting.send_signal(signal.SIGTERM)
        told, err = waiting.communicate(timeout=PATIENCE)
    assert probing
    assert limited.returncode == 12, why
    assert "no training job found" in why or "no job goes by" in why
    assert (no_rank.returncode, out) == (12, ""), what
    assert f"pid {waiting.pid} is no rank, and none is below it" in what
    assert " hangtop watch --interval 1 --json --job-key no-such-job" in what.replace("-m ", "")
    assert waiting.returncode == 0, err
    assert [json.loads(line)["event"] for line in told.splitlines()] == ["stopped"]
    assert err == ""
