"""Known lines. Most of NCCL, of InfiniBand, of GPUs and of the kernel are written by hand after
their sources and public reports, with made-up names. Those of gloo, torchrun and Python are printed
by real jobs, and so are some of NCCL over sockets: see tests/recordings/logs/nccl_*."""

from __future__ import annotations

import re
import time

import pytest

from hangtop_core.logs.meaning.known import KNOWN, NEEDLES, recognise
from hangtop_core.logs.parsing.record import fill

SAMPLES: list[tuple[str, str, str, str | None, dict[str, str]]] = [
    ("N1", "info", "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", None, {"interface": "eth0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>", "wrong-interface", {"interface": "docker0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", None, {"interface": "eth0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>", "wrong-interface", {"interface": "lo"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO Bootstrap: Using docker0:172.17.0.1<0>", "wrong-interface", {"interface": "docker0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO Bootstrap: Using bond0:10.0.0.1<0>", None, {"interface": "bond0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO Bootstrap : Using [0]eth0:10.0.0.1<0>", None, {"interface": "eth0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>", "wrong-interface", {"interface": "docker0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB docker0:172.17.0.1<0>", "wrong-interface", {"interface": "docker0"}),
    ("N1", "info", "n1:1:2 [0] NCCL INFO Using network Socket", None, {"network": "Socket"}),
    ("version", "info", "NCCL version 2.21.5+cuda12.4", None, {"nccl": "2.21.5+cuda12.4"}),
    ("N2", "root", "n1:1:2 [0] transport/net_ib.cc:89 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<39412> with error 12, opcode 0, len 0, vendor err 129", "nccl-ib-error", {"peer": "10.0.0.2<39412>", "error": "12"}),
    ("N2", "root", "n1:1:2 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<39412> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_3", "nccl-ib-error", {"status": "12", "hca": "mlx5_3"}),
    ("N2", "root", "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 req_type=Send hca mlx5_3", "nccl-ib-error", {"status": "12", "name": "IBV_WC_RETRY_EXC_ERR"}),
    ("N2", "cascade", "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=5 opcode=0 len=0 vendor err 249", None, {"status": "5"}),
    ("N2", "root", "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=4 opcode=1 len=0 vendor err 81", "nccl-ib-error", {"status": "4"}),
    ("N4", "root", "NCCL WARN NET/IB : mlx5_2:1 async fatal event: port error", "ib-port-down", {"event": "port error"}),
    ("N5", "root", "NCCL WARN Device 3 marked as failed. Initiating recovery?", "ib-port-down", {"device": "3"}),
    ("N6", "cascade", "n1:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<40213>", None, {"peer": "n2<40213>"}),
    ("N6", "timeout", "n1:1:2 NCCL WARN Net : Connect to 172.17.0.1<43211> failed : Connection refused", None, {"peer": "172.17.0.1<43211>"}),
    ("N7", "root", "NCCL WARN Bootstrap Root : mismatch in info from procs, nranks 8 vs 16", "launch-misconfigured", {"one": "8"}),
    ("GPU", "root", "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 9b000", "launch-misconfigured", {"rank": "1", "other": "0"}),
    ("N8", "info", "NCCL INFO comm 0x55 rank 36 nranks 64 cudaDev 4 nvmlDev 4 busId 9b000 commId 0x5ae7 - Init START", None, {"comm_rank": "36", "id": "0x5ae7"}),
    ("N8C", "info", "NCCL INFO comm 0x55 rank 36 nranks 64 cudaDev 4 nvmlDev 4 busId 9b000 commId 0x5ae7 - Init COMPLETE", None, {"comm_rank": "36"}),
    ("N9", "info", "n1:1:2 [0] NCCL INFO AllReduce: opCount 1f sendbuff 0x7f recvbuff 0x7f count 10 datatype 7 op 0 root 0 comm 0x55 [nranks=8] stream 0x66", None, {"op": "AllReduce", "count": "1f"}),
    ("DISK", "root", "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", "disk-full", {}),
    ("DISK", "root", "RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", "disk-full", {}),
    ("SHM", "root", "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: Resource temporarily unavailable (11)", "shm-too-small", {}),
    ("SHM", "root", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)", "shm-too-small", {}),
    ("N3", "info", "NCCL WARN NET/IB: HINT: In many cases this error occurs when the NCCL_IB_TIMEOUT is set too short.", None, {}),
    ("MEM", "root", "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12", None, {}),
    ("T1", "timeout", "[E1206 18:44:12.7 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.", "missing-collective", {"rank": "3", "seq": "17", "op": "ALLREDUCE", "timeout_ms": "600000"}),
    ("T1", "timeout", "[E ProcessGroupNCCL.cpp:458] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=64088, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25625251 milliseconds before timing out.", "missing-collective", {"seq": "64088"}),
    ("T2", "timeout", "[E1206 18:44:12.7 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by watchdog at work sequence id: 17 PG status: last enqueued work: 19, last completed work: 16", "missing-collective", {"desc": "default_pg", "rank": "3", "enqueued": "19", "completed": "16"}),
    ("T2", "timeout", "[rank4]:[E1016 03:31:38.9 ProcessGroupNCCL.cpp:1709] [PG 3 Rank 4] Timeout at NCCL work: 9141, last enqueued NCCL work: 9141, last completed NCCL work: 9140.", "missing-collective", {"pg": "3", "enqueued": "9141"}),
    ("T3", "timeout", "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.", None, {"seconds": "480"}),
    ("T4", "root", "Could not acquire GIL within 300 ms on exit, possible GIL induced hang", "gil-held", {}),
    ("T5", "cascade", "Received a dump signal due to a collective timeout from  rank 3 and we will try our best", None, {"from": "3"}),
    ("T5", "cascade", "[rank6]:[E703 21:51:54.1 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 6] Received a dump signal due to a collective timeout from  rank 7 and we will try our best to dump the debug info. Last enqueued NCCL work: 56116, last completed NCCL work: 56115.This is most", None, {"from": "7", "rank": "6", "desc": "default_pg", "enqueued": "56116", "completed": "56115"}),
    ("T5", "info", "[PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 1, last completed NCCL work: -1.This", None, {"enqueued": "1", "completed": "-1"}),
    ("T6", "info", "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.", None, {}),
    ("T7", "cascade", "To avoid data inconsistency, we are taking the entire process down.", None, {}),
    ("T8", "cascade", "Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early)", None, {}),
    ("T9", "timeout", "[c10d] TCP client failed to connect/validate to host 10.0.0.1:29500 - retrying (try=3, timeout=1800000ms, delay=4000ms): Connection refused", "store-unreachable", {"host": "10.0.0.1", "port": "29500"}),
    ("T9", "root", "[c10d] TCP client failed to connect/validate to host n1:29500 - retrying (try=0): Ping failed, invalid value returned from server. Expected: 1, Got: 1347703880", "store-port-taken", {"got": "1347703880"}),
    ("T9", "timeout", "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).", "store-unreachable", {"host": "10.0.0.1"}),
    ("T9", "timeout", "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 3/4 clients joined.", "rank-never-joined", {"joined": "3", "world": "4"}),
    ("PORT", "root", "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", "store-port-taken", {"port": "29500"}),
    ("T10", "cascade", "[c10d] recvValue failed on SocketImpl(fd=6, addr=[::1]:43040, remote=[::1]:29500): Connection reset by peer", None, {}),
    ("T10", "cascade", "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?", None, {}),
    ("T11", "info", "TORCH_NCCL_BLOCKING_WAIT is enabled, NO watchdog thread is created.", None, {}),
    ("T12", "info", "Guessing device ID based on global rank. This can cause a hang if rank to GPU mapping is heterogeneous.", None, {}),
    ("T13", "root", "Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE, but Rank 1 is running collective: BROADCAST", "mismatched-collective", {}),
    ("T14", "timeout", "RuntimeError: Rank 2, 3 failed to pass monitoredBarrier in 5000 ms", "missing-collective", {"ranks": "2, 3"}),
    ("T14", "cascade", "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.", None, {"from": "0"}),
    ("T15", "root", "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", "dataloader-worker-dead", {"pid": "4711", "signal": "Killed"}),
    ("T15", "root", "RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly", "dataloader-worker-dead", {"pid": "4711, 4712"}),
    ("T15", "root", "RuntimeError: Pin memory thread exited unexpectedly", "pin-memory-stuck", {}),
    ("G2", "timeout", "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete", "missing-collective", {"ms": "8000"}),
    ("G1", "cascade", "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:60572. This is", None, {"peer": "[127.0.0.1]:60572"}),
    ("G4", "root", "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 786432 vs 32. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?", "mismatched-size", {"got": "786432", "wanted": "32"}),
    ("G3", "timeout", "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error", "port-blocked", {}),
    ("N10", "root", "DistBackendError: NCCL error in: x.cpp:1970, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5", None, {}),
    ("N10", "root", "DistBackendError: NCCL error in: x.cpp:1970, unhandled cuda error, NCCL version 2.21.5", None, {}),
    ("N10", "root", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", None, {}),
    ("N11", "root", "NET/Socket : peer 127.0.0.1<50336> message truncated : receiving 1048576 bytes instead of 65536. If you believe your socket network is in a healthy state, there may be a mismatch in collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks", "mismatched-size", {"peer": "127.0.0.1<50336>", "got": "1048576", "wanted": "65536"}),
    ("N11", "root", "n1:1:2 [0] transport/net_socket.cc:503 NCCL WARN NET/Socket : peer 10.0.0.2<41> message truncated : receiving 512 bytes instead of 256. If you believe your socket network is in healthy state,           there may be a mismatch in collective sizes", "mismatched-size", {"peer": "10.0.0.2<41>"}),
    ("N11", "root", "NCCL WARN NET/Socket : message truncated : receiving 512 bytes instead of 256", "mismatched-size", {"got": "512"}),
    ("N11", "root", "NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.2<41> collective mismatch error, local size 512 remote size 256", "mismatched-size", {"peer": "10.0.0.2<41>", "got": "512", "wanted": "256"}),
    ("N11", "root", "NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.2<41> collective mismatch error local size 512 remote 256 addr 7f rkey 1", "mismatched-size", {"wanted": "256"}),
    ("N11", "root", "NCCL WARN Message truncated : received 1024 bytes instead of 256", "version-mismatch", {"got": "1024"}),
    ("N11", "root", "NCCL WARN Message truncated : received 24,8 bytes instead of 16,8", "version-mismatch", {"got": "24,8"}),
    ("N10", "root", "ncclInternalError: internal error - please report this issue to the NCCL developers", None, {}),
    ("N6", "timeout", "n1:1:1 [0] misc/socket.cc:9 NCCL WARN socketPollConnect: Connect to 10.0.0.3<50000> exceeded retries (34)", None, {"peer": "10.0.0.3<50000>"}),
    ("N6", "timeout", "n1:1:1 [0] misc/socket.cc:9 NCCL WARN socketPollConnect: exceeded retries (20000)", None, {}),
    ("N6", "timeout", "n1:1:1 [0] misc/socket.cc:9 NCCL WARN socketStartConnect: exceeded timeouts (3)", None, {}),
    ("N6", "timeout", "n1:1:1 [0] misc/socket.cc:9 NCCL WARN socketPollConnect: connect to 10.0.0.3<50000> returned Connection refused, exceeded error retry count after 35 attempts", None, {"peer": "10.0.0.3<50000>"}),
    ("N6", "timeout", "n1:1:1 [0] misc/socket.cc:9 NCCL WARN socketStartConnect: connect to 10.0.0.3<50000> failed : No route to host", None, {"peer": "10.0.0.3<50000>"}),
    ("N6", "info", "n1:1:1 [0] NCCL INFO socketPollConnect: connect to 10.0.0.3<50000> returned Connection refused, retrying (1/34) after sleep for 100 msec", None, {"peer": "10.0.0.3<50000>"}),
    ("N6", "info", "n1:1:1 [0] NCCL INFO Call to connect returned Connection refused, retrying", None, {"error": "Connection refused"}),
    ("K2", "root", "[ 9.4] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=python,pid=4711,uid=0", "rank-oom-killed", {"pid": "4711"}),
    ("N10", "cascade", "DistBackendError: NCCL error in: x.cpp:1970, remote process exited or there was a network error, NCCL version 2.21.5", None, {}),
    ("T16", "root", "E1121 11:18:02.853000 24301 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 24304) of binary: /opt/python3", "rank-crashed", {"local": "1", "pid": "24304"}),
    ("T16", "exit", "E1121 11:18:02.853000 24301 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 24304) of binary: /opt/python3", "rank-exited", {"exit": "1"}),
    ("T16", "cascade", "W1121 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 24303 closing signal SIGTERM", None, {"signal": "SIGTERM"}),
    ("T16", "root", "torch.distributed.elastic Received 15 death signal, shutting down workers", "rank-exited", {"signal": "15"}),
    ("T16", "timeout", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous-incomplete", {}),
    ("T16", "root", "The node 'n2_4711_0' has failed to send a keep-alive heartbeat to the rendezvous", "node-unreachable", {"node": "n2_4711_0"}),
    ("SPAWN", "cascade", "torch.multiprocessing.spawn.ProcessRaisedException: ", None, {}),
    ("SPAWN", "root", "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", "rank-crashed", {"rank": "1", "signal": "SIGKILL"}),
    ("SPAWN", "exit", "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3", "rank-exited", {"rank": "1", "exit": "3"}),
    ("OOM", "root", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total", "rank-exited", {"size": "2.00 GiB"}),
    ("DISK", "root", "OSError: [Errno 28] No space left on device: '/scratch/ckpt.pt'", "disk-full", {"path": "/scratch/ckpt.pt"}),
    ("ECC", "root", "RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-ecc", {}),
    ("NVL", "root", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "gpu-nvlink", {}),
    ("CUDA", "root", "RuntimeError: CUDA error: an illegal memory access was encountered", "rank-exited", {}),
    ("SEGV", "root", "Fatal Python error: Segmentation fault", "rank-crashed", {"error": "Segmentation fault"}),
    ("MPI", "root", "mpirun noticed that process rank 2 with PID 4711 on node n1 exited on signal 9 (Killed).", "rank-crashed", {"rank": "2", "node": "n1"}),
    ("SLURM", "root", "srun: error: n2: task 3: Out Of Memory", "rank-crashed", {"rank": "3", "node": "n2"}),
    ("SLURM", "exit", "srun: error: n2: task 3: Exited with exit code 1", "rank-exited", {"exit": "1"}),
    ("SLURM", "root", "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.", "rank-oom-killed", {}),
    ("SLURM", "root", "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T11:17:50 DUE TO TIME LIMIT ***", "rank-exited", {"why": "DUE TO TIME LIMIT "}),
    ("K1", "root", "[ 123.4] NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, GPU has fallen off the bus.", "gpu-xid", {"xid": "79"}),
    ("K1", "cascade", "NVRM: Xid (PCI:0000:9b:00): 45, pid=4711, Ch 00000008", None, {"xid": "45"}),
    ("K2", "root", "Out of memory: Killed process 4711 (pt_main_thread) total-vm:1kB", "rank-oom-killed", {"pid": "4711"}),
    ("K2", "root", "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB", "rank-oom-killed", {"comm": "python3"}),
    ("K3", "root", "INFO: task python3:4711 blocked for more than 122 seconds.", "io-wait", {"pid": "4711"}),
    ("K4", "root", "nfs: server nfs04 not responding, still trying", "io-wait", {"server": "nfs04"}),
    ("K5", "root", "python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch.so", "rank-crashed", {"pid": "4711"}),
    ("K5", "root", "[  123.4] traps: python3[4711] trap invalid opcode ip:7f sp:7f error:0 in a.so", "rank-crashed", {"pid": "4711", "comm": "python3"}),
    ("K5", "root", "Nov 21 11:17:50 n1 kernel: python3[4711]: unhandled level 2 translation fault (11)", "rank-crashed", {"comm": "python3"}),
    ("START", "root", "/usr/bin/python: can't open file '/home/a/train.py': [Errno 2] No such file or directory", "rank-exited", {"path": "/home/a/train.py", "error": "No such file or directory"}),
    ("START", "root", "/usr/bin/python3.11: No module named train", "rank-exited", {"name": "train"}),
    ("E", "error", "2026-11-21 11:17:50,048 ERROR train: could not log in", None, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "part", "line", "cause", "fields"),
    SAMPLES,
    ids=[f"{number}-{sample[0]}" for number, sample in enumerate(SAMPLES)],
)
def test_known_lines(
    code: str, part: str, line: str, cause: str | None, fields: dict[str, str]
) -> None:
    found = recognise(line)
    assert found is not None
    row, said = found
    assert (row.code, row.part, row.cause) == (code, part, cause)
    assert fields.items() <= said.items()


@pytest.mark.parametrize(
    ("line", "means"),
    [
        (
            "Timeout at NCCL work: 43, last enqueued NCCL work: 45, last completed NCCL work: 42.",
            "had begun #45 and completed #42",
        ),
        (
            "Observed flight recorder dump signal from another rank via TCPStore.",
            "was told by another rank that a collective has failed or timed out",
        ),
        ("DataLoader worker (pid 4711) is killed by signal: Killed.",
         "DataLoader worker 4711 has died: Killed"),
        ("DataLoader worker (pid(s) 7) exited unexpectedly", "DataLoader worker 7 has died"),
        (
            "Detected mismatch between collectives on ranks. Rank 0 is running collective: A",
            "ranks are in different collectives: Rank 0 is running collective: A",
        ),
    ],
)  # fmt: skip
def test_what_a_line_does_not_say_is_not_said(line: str, means: str) -> None:
    found = recognise(line)
    assert found is not None
    assert fill(found[0].means, found[1]) == means


def test_every_code_has_a_sample() -> None:
    assert {row.code for row in KNOWN} == {sample[0] for sample in SAMPLES}


def test_every_row_can_be_found_by_its_needle() -> None:
    assert all(row.needle in NEEDLES for row in KNOWN)
    for row in KNOWN:
        for name in re.findall(r"{(\w+)}", row.means):
            assert f"(?P<{name}>" in row.pattern or name in ("signal", "status", "error"), row


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 3 loss 0.1",
        "no errors today",
        "Connected to peer",
        "NCCL INFO Channel 00/16 : 0 1",
    ],
)
def test_plain_lines_are_nothing(line: str) -> None:
    assert recognise(line) is None


def test_matching_is_linear() -> None:
    began = time.process_time()
    for row in KNOWN:
        recognise((row.needle + " ") * 20_000)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    "line",
    [
        "[PG 0 Rank 0]" * 50 + "at work: 1 " * 60 + "last enqueued work: 1" * 30,
        "[PG 0 Rank 0]" * 150 + "dump signal",
        "[Rank 0]" * 240 + "collective operation timeout: ",
        "port: 123 " * 190 + "ddress already in use",
        "port: 123 " * 190 + "EADDRINUS EADDRINUSE",
        "to host a:1 " * 160 + "Ping failed, invalid value",
    ],
)
def test_lines_made_to_be_slow_are_not(line: str) -> None:
    recognise(line)  # compiles the patterns
    began = time.process_time()
    recognise(line)
    assert time.process_time() - began < 0.1


def test_the_group_the_rank_and_the_port_are_told_wherever_they_stand() -> None:
    state = "last enqueued work: 19, last completed work: 16"
    prefix = "[rank3]:[E1206 ProcessGroupNCCL.cpp:1785] "
    for line, fields in (
        (f"{prefix}[PG ID 2 PG GUID 0(tp) Rank 3] Exception (either an error or timeout) detected "
         f"by watchdog at work: 17, {state}", {"pg": "2", "rank": "3", "seq": "17"}),
        (f"{prefix}[Rank 3] some collective operation timeout: WorkNCCL(SeqNum=1, OpType=A, "
         "Timeout(ms)=6) ran for 7 milliseconds", {"rank": "3", "timeout_ms": "6", "ran_ms": "7"}),
        ("[c10d] bind port: 29500, useIpv6: false, EADDRINUSE", {"port": "29500"}),
    ):  # fmt: skip
        found = recognise(line)
        assert found is not None
        assert fields.items() <= found[1].items()
