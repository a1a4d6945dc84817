"""What the largest input that a decoder takes can cost: `python tests/fuzz/largest.py`.

Each target gets input of the size at which its source is cut off (`SIZES`): its good input many
times over, and runs of what is hard on parsers. Each in a process of its own, of which the memory and
the processor time beyond those of a small input are printed, the worst of all inputs. With
``--write docs/security.md`` the table there gets these rows; those of other targets stay.
"""

from __future__ import annotations

import argparse
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
from hangtop_probe.gpu import ethtool  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SIZES = {
    "driver_counters": ethtool.MAX_COUNTERS * 40,
    "loader_cache": 8 * MIB,  # pieces.nvml_places
    "symbols_of_a_program": 16 * MIB,  # elf._MAX_TABLE is a part of it
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
    "capture": 32 * MIB,  # form.MAX_LINE
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
    "hostfile": 8 * MIB,  # targets.MAX_HOSTFILE
    "config_file": 1 * MIB,
    "core_file": 64 * MIB,
    "core_readers": 32 * MIB,  # tools.MAX_OUTPUT
    "core_pattern": 128,  # the kernel's limit
    "numerics_file": 16 * MIB,  # numericsfiles.MAX_LINE
    "lines_of_text": 1 * MIB,
    "endings": 64 * 1024,  # ssh._MAX_LOG
}
"""Bytes at which input is cut off before it is decoded, or what a reader may well come upon."""
ROWS = {
    "node": "pieces of a node: processes, stacks, logs, GPUs; and the verdict on them",
    "frames": "frames of a connection",
    "line_cutter": "lines of a connection",
    "hello_and_boot": "first words of a probe",
    "other_answers": "other answers of a node",
    "network_test": "what nodes answer to a test of the network",
    "strace_lines": "system calls of one trace",
    "proc": "files of /proc, by 17 parsers together: of empty lines, which the kernel never writes",
    "proc_where_it_is_used": "the same where they are used, with those of control groups",
    "masking": "a line that is masked",
    "kernel_record": "a record of the kernel log",
    "process_table": "environment and command line of a process",
    "py_spy": "what py-spy prints",
    "nvml_child": "what the child that asks NVML prints",
    "relayed": "what a broadcast srun brings a node",
    "recorder": "a dump of a flight recorder and the verdict on it, in a process with limits that ends there",
    "numerics_on_the_node": "what a rank found not finite, on its node",
    "servers_in_ranks": "what servers in ranks answer",
    "program": "a program of a user, for the lines around a frame",
    "said_by_torch": "what a process with torch prints in a test of the network",
    "netlink": "the kernel's answers over netlink",
    "tcp_info": "TCP_INFO of the kernel",
    "strangers": "what strangers send to a port of a test of the network",
    "sysfs_of_ports": "files of a network port",
    "capture": "a line of a capture, and the verdict on it",
    "packed_capture": "a packed capture",
    "log": "a log, and what is concluded from it",
    "names_of_files": "names of logs and dumps",
    "packed_log": "a packed log",
    "redaction": "text in which names are replaced",
    "ras_report": "a report of NCCL's RAS",
    "squeue": "what squeue prints",
    "kubectl": "what kubectl prints",
    "ray_nodes": "what Ray prints of its nodes",
    "shared_commands": "what srun and pdsh print",
    "hostfile": "a host file",
    "config_file": "the config file",
    "core_file": "a core file, and what explains it",
    "core_readers": "what pystack, py-spy and gdb print of a core",
    "core_pattern": "core_pattern",
    "programs_of_a_node": "what gdb, strace and Pythons print when they are tried",
    "path_in_memory": "the path of a file that a thread opens",
    "numerics_file": "what a rank found not finite, from a file",
    "lines_of_text": "lines of the kernel log, command lines",
    "endings": "why ssh, srun or pdsh ended",
    "ssh_settings": "what `ssh -G` prints",
    "reader_of_dumps": "what a process says that has read a dump",
    "engine_apart": "what the process says that holds the connections",
    "driver_counters": "counters of a network driver",
    "loader_cache": "the loader's cache of libraries",
    "symbols_of_a_program": "the symbols of a program of a user",
    "end_of_a_log": "the end of a log, on its node",
    "variables_of_a_job": "variables of a prepared job",
    "first_line_of_a_script": "the first line of a script",
    "proc_in_a_rank": "files of /proc, in a prepared rank",
}
"""What each decodes, in the order of the table of docs/security.md."""
BEGIN, END = "<!-- largest.py -->\n", "<!-- /largest.py -->"
"""What stands around it there."""
HEAD = "| what is decoded | the largest there can be | processor | memory |\n|---|---|---|---|\n"
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


def row(name: str) -> tuple[str, set[str]]:
    """Measure a decoder; return its row of the table, and how runs ended that went wrong."""
    size = SIZES[name]
    seconds, memory, ends = 0.0, 0, set()
    base_s, base, _ = cost(name, TARGETS[name].seeds()[0])
    for data in inputs(name, size):
        took, used, end = cost(name, data)
        seconds, memory = max(seconds, took - base_s), max(memory, used - base)
        ends.add(end)
    unit = f"{size / 1024:.3g} KiB" if size >= 1024 else f"{size} B"
    unit = f"{size / MIB:.0f} MiB" if size >= MIB else unit
    return f"| {ROWS[name]} | {unit} | {seconds:.1f} s | {memory / MIB:.0f} MiB |", ends - {"ok"}


def table(text: str) -> dict[str, str]:
    """The rows of the table within a document, by what each is of."""
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    return {line.split("|")[1].strip(): line for line in lines}


def written(text: str, rows: dict[str, str]) -> str:
    """A document with some rows of its table anew, and those in order that it should have."""
    every = {**table(text), **rows}
    lines = [every[words] for words in ROWS.values() if words in every]
    before, _, after = text.partition(BEGIN)
    return before + BEGIN + HEAD + "\n".join(lines) + "\n" + END + after.partition(END)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the largest input of each decoder.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="of these; default: of all")
    parser.add_argument("--write", type=Path, metavar="FILE", help="take the rows into its table")
    arguments = parser.parse_args()
    for name in arguments.targets or ROWS:
        line, wrong = row(name)
        print(line, *sorted(wrong), flush=True)
        if arguments.write is not None:
            text = written(arguments.write.read_text("utf-8"), {ROWS[name]: line})
            arguments.write.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
