"""Meaning of functions: the one table that activities are read from.

Function names and files are those of CPython 3.8 to 3.14 and torch 2.4 to 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.model.frames import plain_name
from hangtop_core.stacks.kinds import Kind

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Frame

COLLECTIVES = frozenset(
    [
        "all_reduce",
        "all_reduce_coalesced",
        "reduce",
        "broadcast",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_single",
        "all_gather_coalesced",
        "all_gather_object",
        "_all_gather_base",
        "gather",
        "gather_object",
        "scatter",
        "scatter_object_list",
        "broadcast_object_list",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "_reduce_scatter_base",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "monitored_barrier",
    ]
)
ROOTED = frozenset({"broadcast", "gather", "gather_object", "reduce", "scatter"})
"""Collectives that ranks may leave as soon as they have sent, or got, their own part."""
_SENDS = frozenset({"send", "isend", "send_object_list"})
_RECEIVES = frozenset({"recv", "irecv", "recv_object_list"})

_C10D = "/torch/distributed/distributed_c10d.py"
_JOINS = "waits in init_process_group"
_LOADER = "/torch/utils/data/dataloader.py"
_RPC = "/torch/distributed/rpc/api.py"


class Pattern(Struct, frozen=True):
    """Functions that, anywhere in the innermost library frames, determine what a thread does."""

    kind: Kind
    files: tuple[str, ...]
    """Parts of the path, with slashes where folders end."""
    names: frozenset[str] | None
    """Plain function names; None for all in these files."""
    text: str
    """Predicate for sentences: `rank 2 {text}`."""


def _pattern(kind: Kind, files: str, names: str | frozenset[str] | None, text: str) -> Pattern:
    plain = frozenset(names.split()) if isinstance(names, str) else names
    return Pattern(kind, tuple(files.split()), plain, text)


EDITOR = "waits for the debugger of an editor"
"""Wait in debugpy (1.8: pydevd.py) for an editor to attach or to continue."""

PATTERNS: tuple[Pattern, ...] = (
    _pattern("prompt", "/pdb.py /bdb.py /IPython/core/debugger.py", None, "sits in a debugger"),
    _pattern("prompt", "/cmd.py", "cmdloop", "sits at a prompt"),
    _pattern("prompt", "/code.py", "interact raw_input", "sits at an interactive prompt"),
    _pattern(
        "prompt",
        "/pydevd.py",
        "block_until_configuration_done _wait_for_attach do_wait_suspend _do_wait_suspend",
        EDITOR,
    ),
    _pattern("prompt", "/getpass.py", None, "waits for a password at a prompt"),
    _pattern(
        "teardown",
        _C10D,
        "destroy_process_group _abort_process_group",
        "is destroying its process groups",
    ),
    _pattern(
        "teardown",
        "/threading.py /multiprocessing/util.py /concurrent/futures/thread.py "
        "/concurrent/futures/process.py",
        "_shutdown _exit_function _python_exit",
        "is shutting down: it waits for its threads or children to end",
    ),
    _pattern("teardown", _LOADER, "_shutdown_workers __del__", "is shutting down a DataLoader"),
    _pattern(
        "rendezvous",
        "/torch/distributed/elastic/rendezvous/",
        None,
        "waits in the rendezvous for other nodes",
    ),
    _pattern(
        # The static rendezvous does not meet; the launchers do, one step later.
        "rendezvous",
        "/torch/distributed/elastic/agent/server/api.py",
        "_assign_worker_ranks",
        "waits for the launchers of other nodes",
    ),
    _pattern("init", "/torch/distributed/rpc/__init__.py", "init_rpc", "waits in init_rpc"),
    _pattern("work-wait", _RPC, "shutdown rpc_sync _wait_all", "waits in rpc.{name}"),
    _pattern(
        "init",
        f"{_C10D} /torch/distributed/rendezvous.py",
        "init_process_group _create_c10d_store _env_rendezvous_handler _tcp_rendezvous_handler "
        "_file_rendezvous_handler",
        _JOINS,
    ),
    _pattern(
        "new-group",
        f"{_C10D} /torch/distributed/device_mesh.py",
        "new_group _new_group_with_tag split_group new_subgroups new_subgroups_by_enumeration "
        "init_device_mesh _init_process_groups _init_one_process_group",
        "waits in new_group",
    ),
    _pattern("init", _C10D, "_new_process_group_helper _store_based_barrier", _JOINS),
    _pattern("send", _C10D, _SENDS, "waits in {name}"),
    _pattern("recv", _C10D, _RECEIVES, "waits in {name}"),
    _pattern("recv", _C10D, "batch_isend_irecv", "waits in batch_isend_irecv"),
    _pattern("collective", _C10D, COLLECTIVES, "waits in {name}"),
    _pattern(
        "store",
        "/torch/distributed/elastic/utils/store.py /torch/distributed/elastic/agent/",
        "get_all synchronize barrier _barrier_nonblocking _try_detecting_missing_ranks",
        "waits for keys in the store",
    ),
    _pattern(
        "compiling",
        "/torch/_inductor/ /torch/_dynamo/ /triton/compiler/ /triton/runtime/ "
        "/torch/utils/cpp_extension.py",
        "compile compile_fx compile_fx_inner compile_to_fn _compile _compile_inner "
        "compile_to_module wait_for_compile _wait_futures codegen run_ninja _run_ninja_build "
        "_write_ninja_file "
        "do_bench benchmark autotune transform compile_and_call_fx_graph "
        "load_by_key_path _do_compile",
        "is compiling",
    ),
    _pattern("data", _LOADER, "_try_get_data _get_data", "waits for its DataLoader workers"),
    _pattern(
        "pin-memory",
        "/torch/utils/data/_utils/pin_memory.py",
        None,
        "pins memory for its DataLoader",
    ),
    _pattern(
        "file-lock",
        "/filelock/ /torch/utils/_filelock.py /torch/utils/file_baton.py /portalocker/ /fasteners/",
        None,
        "waits for a lock file",
    ),
    _pattern(
        "child",
        "/subprocess.py",
        "wait _wait communicate _communicate _try_wait call run check_call check_output",
        "waits for a program it started",
    ),
    _pattern(
        "child",
        "/multiprocessing/popen_fork.py /multiprocessing/popen_spawn_posix.py "
        "/multiprocessing/popen_forkserver.py",
        "wait poll",
        "waits for a process it started",
    ),
    _pattern(
        "child",
        "/multiprocessing/pool.py /multiprocess/pool.py",
        "get wait next join map starmap apply",
        "waits for the processes of its pool",
    ),
    _pattern("remote", "/socketserver.py", "serve_forever", "waits for requests"),
    _pattern(
        "remote",
        "/http/client.py /urllib/request.py /ssl.py /urllib3/ /requests/ /httpx/ /httpcore/ "
        "/aiohttp/ /botocore/ /s3fs/ /gcsfs/ /fsspec/asyn.py /fsspec/implementations/arrow.py "
        "/huggingface_hub/ /google/api_core/ /google/auth/ /google/cloud/ /grpc/ /redis/ /pymongo/ "
        "/psycopg2/ /paramiko/ /socketserver.py /xmlrpc/client.py /wandb/ /mlflow/ /ftplib.py "
        "/smtplib.py",
        None,
        "waits for a remote service",
    ),
    _pattern("remote", "/socket.py", "getaddrinfo", "waits for a name server (DNS)"),
    _pattern("remote", "/socket.py", None, "waits for a network peer"),
    _pattern(
        "inline-data",
        "/torch/utils/data/_utils/fetch.py",
        None,
        "prepares a batch",
    ),
    _pattern("idle-worker", "/torch/utils/data/_utils/worker.py", "_worker_loop", "waits for work"),
    _pattern(
        "checkpoint",
        "/torch/serialization.py /torch/distributed/checkpoint/ /safetensors/",
        "save _save _legacy_save async_save save_file _save_state_dict write_data",
        "writes a checkpoint",
    ),
    _pattern(
        "collective",
        "/torch/distributed/_functional_collectives.py /torch/distributed/nn/functional.py "
        "/torch/nn/modules/_functions.py",
        None,
        "waits in {name}",
    ),
    _pattern(
        "collective",
        "/torch/nn/parallel/distributed.py /torch/distributed/utils.py",
        "_verify_param_shape_across_processes _sync_module_states _sync_params_and_buffers "
        "_distributed_broadcast_coalesced _default_broadcast_coalesced _sync_buffers "
        "_broadcast_coalesced _check_global_requires_backward_grad_sync _ddp_init_helper",
        "waits in {name}",
    ),
    _pattern(
        "work-wait",
        "/torch/distributed/fsdp/ /torch/distributed/_composable/ /torch/distributed/pipelining/ "
        "/torch/distributed/tensor/ /torch/distributed/_tensor/ "
        "/torch/distributed/_symmetric_memory/",
        None,
        "waits for outstanding communication",
    ),
    _pattern(
        "work-wait",
        "/torch/cuda/__init__.py /torch/cuda/streams.py",
        "synchronize wait",
        "waits for its GPU",
    ),
    _pattern(
        "backward",
        "/torch/autograd/graph.py /torch/autograd/__init__.py",
        "_engine_run_backward backward grad",
        "waits in the gradient reduction of backward",
    ),
    _pattern(
        "queue",
        "/queue.py /multiprocessing/queues.py /concurrent/futures/_base.py "
        "/multiprocessing/pool.py /multiprocessing/connection.py /multiprocessing/managers.py",
        "get put result wait as_completed _recv recv recv_bytes _poll poll join exception",
        "waits for a queue",
    ),
    _pattern(
        "queue",
        "/asyncio/",
        "_run_once run_forever run_until_complete run",
        "runs an event loop that waits",
    ),
    _pattern(
        "join", "/threading.py", "join _wait_for_tstate_lock", "waits for a thread of its own"
    ),
    _pattern("lock", "/threading.py", "wait acquire wait_for __enter__ _wait", "waits for a lock"),
    _pattern("lock", "/multiprocessing/synchronize.py", None, "waits for a lock of processes"),
    _pattern("lock", "/logging/__init__.py", "acquire", "waits for the lock of a log handler"),
    _pattern("inline-data", f"{_LOADER} /torch/utils/data/dataset.py", None, "loads data"),
    _pattern(
        "importing",
        "<frozen importlib._bootstrap>",
        "_find_and_load _load_unlocked",
        "imports modules",
    ),
)
"""In order: the first pattern that matches any of the innermost library frames decides."""


def match(run: tuple[Frame, ...]) -> tuple[Pattern, Frame] | None:
    """Return the pattern for these library frames (innermost first), and the frame it matches.

    If several frames match one pattern, the outermost counts: the function that the user called.
    """
    names = [plain_name(frame.name) for frame in run]
    paths = ["/" + frame.file for frame in run]
    for pattern in PATTERNS:
        for index in range(len(run) - 1, -1, -1):
            if pattern.names is not None and names[index] not in pattern.names:
                continue
            if any(part in paths[index] for part in pattern.files):
                return pattern, run[index]
    return None
