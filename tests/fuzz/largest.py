"""What the largest input that a decoder takes can cost: `python tests/fuzz/largest.py [TARGET ...]`.

Each target gets input of the size at which its source is cut off (`SIZES`): its good input many
times over, and runs of what is hard on parsers. Each in a process of its own, of which the memory and
the processor time beyond those of a small input are printed, the worst of all inputs.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("core", "tui", "tests")]

import fuzz.files  # noqa: E402, F401
from fuzz.target import TARGETS  # noqa: E402
from hangtop_probe import ethtool  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SIZES = {
    "driver_counters": ethtool.MAX_COUNTERS * 40,
    "loader_cache": 8 * MIB,  # pieces.nvml_places
    "programs_of_a_node": 32 * MIB,  # tools.MAX_OUTPUT
    "end_of_a_log": 1 * MIB,  # logs.MAX_WINDOW
    "path_in_memory": 4096,
    "variables_of_a_job": 128 << 10,  # the kernel's limit, MAX_ARG_STRLEN
    "first_line_of_a_script": 512,
    "proc_in_a_rank": 1 << 16,
    "ssh_settings": 1 * MIB,  # ssh._MAX_SETTINGS
    "tcp_info": 256,
    "reader_of_dumps": 64 * MIB,
    "engine_apart": 16 * MIB,
    "node": 16 * MIB,  # wire.MAX_MESSAGE
    "hello_and_boot": 16 * MIB,
    "other_answers": 16 * MIB,
    "network_test": 16 * MIB,
    "frames": 16 * MIB,
    "line_cutter": 16 * MIB,
    "strace_lines": 20_000 * 1000,  # strace.MAX_LINES, of 1,000 characters
    "proc": 16 * MIB,  # procfs.read_all
    "proc_where_it_is_used": 16 * MIB,
    "netlink": 1 << 18,  # one recv of nettest_links
    "program": 512 << 10,  # blocks.MAX_FILE
    "said_by_torch": 1 * MIB,  # nettest_ranks.MAX_LINE
    "strangers": 1 << 16,
    "kernel_record": 8192,  # one read of /dev/kmsg
    "masking": 4096,  # lines of logs, the kernel and strace are cut
    "process_table": 8 * MIB,  # procfs.MAX_ENVIRON
    "py_spy": 32 * MIB,  # tools.MAX_OUTPUT
    "nvml_child": 1 * MIB,
    "relayed": 64 * MIB,  # relay.MAX_FILE
    "recorder": 64 * MIB,  # recorderread.MAX_FILE
    "numerics_on_the_node": 64 * MIB,  # numerics.MAX_READ
    "servers_in_ranks": 1 << 16,
    "sysfs_of_ports": 4096,
    "capture": 64 * MIB,  # form.MAX_LINE
    "packed_capture": 16 * MIB,
    "log": 4 * MIB,  # of a live job; files are read to their end, in time that grows with them
    "packed_log": 4 * MIB,
    "names_of_files": 1 * MIB,
    "redaction": 4 * MIB,  # the ends of logs are the longest text of a capture
    "ras_report": 32 * MIB,  # ras.MAX_TEXT
    "squeue": 4 * MIB,  # squeue.MAX_OUTPUT
    "ray_nodes": 16 * MIB,  # raynodes.MAX_OUTPUT
    "kubectl": 64 * MIB,  # kube.MAX_OUTPUT
    "shared_commands": 4 * MIB,
    "hostfile": 1 * MIB,
    "config_file": 1 * MIB,
    "core_file": 64 * MIB,
    "core_readers": 32 * MIB,  # tools.MAX_OUTPUT
    "core_pattern": 128,  # the kernel's limit
    "numerics_file": 16 * MIB,  # numericsfiles.MAX_LINE
    "lines_of_text": 1 * MIB,
    "endings": 64 * 1024,  # ssh._MAX_LOG
}
"""Bytes at which input is cut off before it is decoded, or what a reader may well come upon."""
HARD = (b"[", b"a ", b"9", b"\n", b'{"a":', b'"\\u0000",', b"\xff", b"[rank0]: ", b"\x1b[", b"= ")
GIVE_UP_S = 120
MOST = 6 << 30
"""Bytes after which a decoder has failed."""


def inputs(name: str, size: int) -> Iterator[bytes]:
    seeds = TARGETS[name].seeds()
    yield from (seed * (size // max(len(seed), 1)) for seed in seeds[:3])
    yield from (seeds[0][:200] + part * (size // len(part)) for part in HARD)
    with suppress(ValueError):  # no JSON
        yield grown(json.loads(seeds[0].split(b"\n")[0]), size)


def grown(value: Any, size: int) -> bytes:
    """Good JSON of about that size: what takes most of it, many times over within it."""
    holders = [value]
    for one in holders:
        children = one.values() if isinstance(one, dict) else one
        holders += [
            child for child in children if isinstance(child, dict | list) and len(child) > 1
        ]
    several = [one for one in holders if all(isinstance(child, dict) for child in _children(one))]
    most = max(several or holders, key=lambda one: len(json.dumps(one)))
    first = _children(most)[0]
    times = max(size * 9 // 10 // len(json.dumps(first)), 1)
    if not isinstance(most, dict) or not isinstance(first, dict):
        most = most if isinstance(most, list) else []
        most.extend([first] * times)
    else:
        most.update(
            {str(number): {**first, "pid": number} for number in range(10_000, 10_000 + times)}
        )
    return json.dumps(value).encode()


def _children(one: Any) -> list[Any]:
    return list(one.values()) if isinstance(one, dict) else list(one)


def cost(name: str, data: bytes) -> tuple[float, int, str]:
    """Seconds of processor, bytes of memory, and how it ended, in a process of its own."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (GIVE_UP_S, GIVE_UP_S))
        resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
        how = "ok"
        try:
            TARGETS[name].run(data)
        except AssertionError as error:
            how = f"says more than it may: {str(error)[:60]}"
        except BaseException as error:
            how = type(error).__name__
        os.write(here, how.encode())
        os._exit(0)
    os.close(here)
    said = os.read(there, 200).decode()
    os.close(there)
    _, status, usage = os.wait4(child, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, said or f"status {status}"


def main() -> None:
    print("| decoder | largest input | processor | memory |")
    print("|---|---|---|---|")
    for name in sys.argv[1:] or TARGETS:
        size = SIZES[name]
        seconds, memory, hows = 0.0, 0, set()
        base_s, base, _ = cost(name, TARGETS[name].seeds()[0])
        for data in inputs(name, size):
            took, used, how = cost(name, data)
            seconds, memory = max(seconds, took - base_s), max(memory, used - base)
            hows.add(how)
        told = f"{size / MIB:.0f} MiB" if size >= MIB else f"{size / 1024:.3g} KiB"
        odd = "".join(f" {how}" for how in sorted(hows - {"ok"}))
        used = f"{memory / MIB:.0f} MiB"
        print(f"| `{name}` | {told} | {seconds:.1f} s | {used}{odd} |", flush=True)


if __name__ == "__main__":
    main()
