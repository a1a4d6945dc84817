"""Pieces of a `watch` stream as a probe would send them, for tests of the head side."""

from __future__ import annotations

from typing import Any

STRINGS = {"1": "python", "2": "S", "3": "futex_do_wait", "4": "futex", "5": "pt_workerserver"}
EPOCH = 1.7e9


def process(pid: int, rank: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return a whole process; a rank under torchrun unless ``fields`` say otherwise."""
    env = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}
    if rank is not None:
        env["RANK"] = str(rank)
    whole: dict[str, Any] = {
        "pid": pid,
        "ppid": 99,
        "start": pid * 10,
        "started_at": EPOCH - 100,
        "role": "rank",
        "label": f"rank {rank}",
        "state": "S",
        "comm": "python",
        "cmdline": ["python", "-u", "/home/u/train.py", "--lr", "1"],
        "rank": rank,
        "rank_pid": pid,
        "launcher_pid": 99,
        "launcher": "torchrun",
        "env": env,
        "threads": [[pid, 1, 2, 3, 4, None, None]],
        "meters": meters(),
    }
    return {**whole, **fields}


def launcher(pid: int, *options: str, **fields: Any) -> dict[str, Any]:
    """Return torchrun."""
    cmdline = ["/venv/bin/python", "/venv/bin/torchrun", *options, "train.py"]
    return process(
        pid,
        **{
            "role": "launcher",
            "label": "torchrun",
            "cmdline": cmdline,
            "env": {},
            "ppid": 1,
            "rank_pid": None,
            "launcher_pid": None,
            **fields,
        },
    )


def child(
    pid: int, rank_pid: int, role: str = "dataloader-worker", **fields: Any
) -> dict[str, Any]:
    """Return a child of a rank."""
    return process(
        pid, **{"role": role, "label": role, "rank_pid": rank_pid, "ppid": rank_pid, **fields}
    )


def meters(**fields: Any) -> dict[str, Any]:
    """Return counters of a process whose main thread ran 20 s ago."""
    return {
        "cpu_s": 1.0,
        "main_cpu_ns": 10**9,
        "main_switches": 50,
        "main_waits": 1,
        "main_last_ran_s": 20.0,
        "read_bytes": 0,
        "write_bytes": 0,
        **fields,
    }


def piece(at: float, *processes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a piece ``at`` seconds after `EPOCH`; ``processes`` are whole or changed."""
    changed = {str(p["pid"]): p for p in processes}
    return {"at": EPOCH + at, "strings": STRINGS, "set": changed, **fields}


def stacks(pid: int, at: float, *stack: tuple[str, int], **fields: Any) -> dict[str, Any]:
    """Return a `stacks` piece with one thread; ``stack`` is (function, line), innermost first."""
    key = repr(stack)
    rows = [[name, f"/src/{name}.py", f"{name}.py", line, False, None] for name, line in stack]
    thread = {"tid": pid, "name": "MainThread", "active": False, "gil": False, "stack": key}
    whole = {"stacks": {key: rows}, "threads": [thread]}
    return {"pid": pid, "start": pid * 10, "at": EPOCH + at, "took": 0.02, **whole, **fields}
