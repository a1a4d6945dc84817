"""Known lines of NCCL, torch, launchers and the kernel, with their meanings.

One row per line keeps the table readable. `needle` is text that every such line contains: lines
without any needle are not matched. Among rows with the same needle the first match counts, and an
error has priority over information, see `recognise`.

Sources: NCCL 2.18 to 2.30 (src/debug.cc, transport/net_ib.cc, transport/net_socket.cc,
misc/socket.cc, bootstrap.cc, init.cc), torch 2.4 to 2.15 (ProcessGroupNCCL.cpp, TCPStore,
elastic/multiprocessing), gloo (transport/tcp/pair.cc), Open MPI 4, Slurm 22 to 24, NVIDIA's driver (`NVRM: Xid`), Linux 4.18 to
6.18 (mm/oom_kill.c, kernel/hung_task.c, arch/*/mm/fault.c, arch/x86/kernel/traps.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.file_log import Part


@dataclass(frozen=True)
class Known:
    """One kind of line."""

    code: str
    needle: str
    pattern: str
    part: Part
    means: str
    """For people; `{name}` is a field of the line, and a part in brackets is left out without its
    fields."""
    cause: str | None = None
    """The cause code that it supports."""
    kept: str = ""
    """Fields that distinguish lines of one stream; only the last line for each is kept."""

    @cached_property
    def match(self) -> re.Pattern[str]:
        """Return the pattern, compiled at the first line with the needle: most never are."""
        return re.compile(self.pattern)


LOCAL_INTERFACE = (
    r"(?:docker\d*|lo|virbr\d*|veth\w*|br-\w+|cni\d*|flannel[\w.]*|cali\w*|tun\d+|podman\d*)"
)
"""Names of interfaces that lead to no other node."""
_GROUP = r"(?:\[PG (?:ID )?(?P<pg>\S+)(?: PG GUID (?P<guid>[^\s(]*)(?:\((?P<desc>[^)]*)\))?)? Rank (?P<rank>\d+)\].{0,300}?)?"
_STATE = r".{0,80}?Last enqueued \w+ work: (?P<enqueued>-?\d+), last completed \w+ work: (?P<completed>-?\d+)"
_XID = r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]{4,20})\): (?P<xid>%s)\b(?:, pid(?:=|: )'?(?P<pid>\d{1,10}))?(?:.*?name=(?P<comm>[^,]{1,32}))?"
_FAULT = r"(?:^|(?<=\s))(?:traps: )?(?P<comm>[^\s\[\]:][^\[\]:]{0,15})\[(?P<pid>\d{1,10})\]:? (?:segfault at (?P<address>[0-9a-f]+)|general protection|trap |unhandled |bad frame)"
_AT = r"(?P<peer>[\w.:\[\]-]*[\w\]](?:<\d+>)?)"

KNOWN: tuple[Known, ...] = (
    # NCCL: its choices
    Known("N1", "NET/IB : Using", rf"NET/IB : Using (?P<devices>.{{1,300}}?); OOB (?P<interface>{LOCAL_INTERFACE}):(?P<address>[\d.a-f:]+)", "info",
          "NCCL sends over InfiniBand or RoCE, but makes its connections over {interface} ({address}), which leads to no other node", "wrong-interface"),
    Known("N1", "NET/IB : Using", r"NET/IB : Using (?P<devices>(?=.{0,300}/IB\b)(?=.{0,300}/RoCE\b).{1,300}?)(?:; OOB (?P<interface>[^:\s]+):(?P<address>[\d.a-f:]*)|$)", "info",
          "NCCL uses InfiniBand and RoCE at once, two networks ({devices}): NCCL_IB_HCA leaves some out"),
    Known("N1", "NET/IB : Using", r"NET/IB : Using (?P<devices>.{1,300}?)(?:; OOB (?P<interface>[^:\s]+):(?P<address>[\d.a-f:]*)|$)", "info",
          "NCCL uses InfiniBand or RoCE: {devices}"),
    Known("N1", "NET/Socket : Using", rf"NET/Socket : Using .{{0,300}}?\[\d+\](?P<interface>{LOCAL_INTERFACE}):(?P<address>[\d.a-f:]+)", "info",
          "NCCL sends over {interface} ({address}), which leads to no other node", "wrong-interface"),
    Known("N1", "NET/Socket : Using", r"NET/Socket : Using \[0\](?P<interface>[^:\s]+):(?P<address>\S+?)<", "info",
          "NCCL sends over plain sockets on {interface} ({address})"),
    Known("N1", "Bootstrap", rf"Bootstrap ?: Using (?:\[0\])?(?P<interface>{LOCAL_INTERFACE}):(?P<address>[\d.a-f:]+)", "info",
          "NCCL meets over {interface} ({address}), which leads to no other node", "wrong-interface"),
    Known("N1", "Bootstrap", r"Bootstrap ?: Using (?:\[0\])?(?P<interface>[^:\s]+):(?P<address>\S+?)<", "info",
          "NCCL meets over {interface} ({address})"),
    Known("N1", "Using network", r"NCCL INFO .*Using network (?P<network>[\w ]{1,40})", "info", "NCCL's network is {network}"),
    Known("N1", "NET/IB : No device", r"NET/IB : No device found", "info", "NCCL has found no InfiniBand device"),
    Known("version", "NCCL version", r"NCCL version (?P<nccl>\d[\w.+-]{2,40})", "info", "NCCL {nccl}"),
    Known("N8", "Init START", r"comm (?P<comm>0x[0-9a-f]+) rank (?P<comm_rank>\d+) nranks (?P<nranks>\d+) .*?(?:commId (?P<id>0x[0-9a-f]+) )?- Init START", "info",
          "began to join the communicator {id} as {comm_rank} of {nranks}", kept="id"),
    Known("N8C", "Init COMPLETE", r"comm (?P<comm>0x[0-9a-f]+) rank (?P<comm_rank>\d+) nranks (?P<nranks>\d+) .*?(?:commId (?P<id>0x[0-9a-f]+) )?- Init COMPLETE", "info",
          "joined the communicator {id} as {comm_rank} of {nranks}", kept="id"),
    Known("N9", "opCount", r"NCCL INFO (?P<op>\w+): opCount (?P<count>[0-9a-f]+) .*?comm (?P<comm>0x[0-9a-f]+)", "info",
          "last NCCL call of this communicator: {op}, number 0x{count}", kept="comm"),
    # NCCL: errors
    Known("N2", "Got completion from peer", rf"NET/IB ?: ?Got completion from peer {_AT} with (?:status=(?P<name>[A-Z_]+)?\(?(?P<status>12)\b|error (?P<error>12)\b).*?(?:hca (?P<hca>\S+))?$", "root",
          "InfiniBand error 12 (retries exceeded): {peer} no longer answers", "nccl-ib-error", kept="peer"),
    Known("N2", "Got completion from peer", rf"NET/IB ?: ?Got completion from peer {_AT} with (?:status=(?P<name>[A-Z_]+)?\(?(?P<status>5)\b|error (?P<error>5)\b)", "cascade",
          "InfiniBand error 5 (flushed): the connection to {peer} had failed before", kept="peer"),
    Known("N2", "Got completion from peer", rf"NET/IB ?: ?Got completion from peer {_AT} with (?:status=(?P<name>[A-Z_]+)?\(?(?P<status>\d+)\b|error (?P<error>\d+)\b).*?(?:hca (?P<hca>\S+))?$", "root",
          "InfiniBand error {status}{error} towards {peer}", "nccl-ib-error", kept="peer"),
    Known("N3", "HINT:", r"NCCL .*HINT: (?P<hint>.{1,200})", "info", "NCCL's hint: {hint}"),
    Known("N4", "async fatal event", r"NET/IB : (?P<device>[^:\s]+:\d+)?.*async fatal event: (?P<event>.{1,80})", "root",
          "InfiniBand device {device}: {event}", "ib-port-down"),
    Known("N4", "async event", r"Got non-fatal async event: (?P<event>[^(]{1,60}\(\d+\))", "info", "InfiniBand event: {event}"),
    Known("N5", "marked as failed", r"Device (?P<device>\S+) marked as failed", "root", "InfiniBand device {device} has failed", "ib-port-down"),
    Known("N6", "losed by remote peer", rf"(?:Connection closed by remote peer|closed by remote peer) {_AT}", "cascade",
          "the connection to {peer} was closed: it has ended, or ended the connection"),
    Known("N6", "retrying", rf"Connect(?: to|: connect to) {_AT} returned .{{0,80}}, retrying", "info",
          "could not connect to {peer} at once, and tried again", kept="peer"),
    Known("N6", "retrying", r"Call to connect returned (?P<error>[\w ]{1,60}), retrying", "info",
          "could not connect to a rank at once ({error}), and tried again", kept="error"),
    Known("N6", "exceeded", rf"[Cc]onnect to {_AT}.*exceeded (?:error )?(?:retr|timeout)", "timeout",
          "cannot connect to {peer}: nobody listens there, or the way is blocked"),
    Known("N6", "exceeded", r"socket(?:Poll|Start)Connect.*exceeded (?:error )?(?:retr|timeout)", "timeout",
          "cannot connect: nobody listens there, or the way is blocked"),
    Known("N6", "onnect to", rf"Connect(?: to|: connect to) {_AT} (?:returned|failed)(?!.*, retrying).{{0,80}}(?:Connection refused|No route to host|Connection timed out|errno (?:111|113|110))", "timeout",
          "cannot connect to {peer}: nobody listens there, or the way is blocked"),
    Known("N7", "Bootstrap Root : mismatch", r"Bootstrap Root : mismatch in info from procs, nranks (?P<one>\d+) vs (?P<other>\d+)", "root",
          "ranks meet that were told different world sizes: {one} and {other}", "launch-misconfigured"),
    Known("N7", "already checked in", r"rank (?P<rank>\d+) of (?P<nranks>\d+) ranks has already checked in", "root",
          "rank {rank} is there twice", "launch-misconfigured"),
    Known("GPU", "Duplicate GPU detected", r"Duplicate GPU detected : rank (?P<rank>\d+) and rank (?P<other>\d+) both on CUDA device (?P<device>\S+)", "root",
          "ranks {rank} and {other} use one GPU ({device})", "launch-misconfigured"),
    Known("SHM", "hared memory", r"(?:[Uu]nable to allocate shared memory|Error while creating shared memory segment|insufficient shared memory|out of shared memory)", "root",
          "shared memory (/dev/shm) was too small", "shm-too-small"),
    Known("SHM", "/dev/shm/", r"/dev/shm/\S+.{0,40}(?:No space left on device|size \d+ .*error)", "root", "/dev/shm is full", "shm-too-small"),
    Known("MEM", "ibv_reg_mr", r"(?:Call to )?ibv_reg_mr\w* failed.{0,60}(?:Cannot allocate memory|errno 12)", "root",
          "memory could not be registered with InfiniBand: the limit of locked memory (ulimit -l) is too small"),
    # torch: the watchdog
    Known("T1", "collective operation timeout", r"(?:\[Rank (?P<rank>\d+)\].{0,300}?)?collective operation timeout: (?:WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?.{0,300}?Timeout\(ms\)=(?P<timeout_ms>\d+)\) ran for (?P<ran_ms>\d+)|NCCL operation timed out)", "timeout",
          "waited in {op} #{seq} for {ran_ms} ms, and gave up", "missing-collective", kept="seq"),
    Known("T2", "last enqueued", rf"{_GROUP}(?:work sequence id|(?:at|by) (?:NCCL )?watchdog at work|[Tt]imeout at NCCL work|at work): (?P<seq>\d+)\D.{{0,100}}?last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)", "timeout",
          "had begun #{enqueued}[ of group {pg} {desc}] and completed #{completed}", "missing-collective", kept="pg"),
    Known("T3", "watchdog got stuck", r"watchdog got stuck for (?P<seconds>\d+) ?seconds", "timeout",
          "its watchdog got nowhere for {seconds} s: a CUDA call, or the GIL, holds it"),
    Known("T4", "Could not acquire GIL", r"Could not acquire GIL within", "root", "a thread held the GIL and did not let go", "gil-held"),
    Known("T5", "First PG on this rank to signal dumping", r"First PG on this rank to signal dumping", "info", "this rank was the first of its own to ask for recorder dumps"),
    Known("T5", "dump signal", rf"{_GROUP}Received a dump signal due to a collective timeout from this local rank(?:{_STATE})?", "info",
          "asks for recorder dumps[; had begun #{enqueued} of group {pg} {desc} and completed #{completed}]", kept="pg"),
    Known("T5", "dump signal", rf"{_GROUP}(?:Received a dump signal due to a collective timeout from +(?:global )?(?:rank )?(?P<from>\d+)(?:{_STATE})?|Observed flight recorder dump signal)", "cascade",
          "was told by another rank that a collective has failed or timed out[; had begun #{enqueued} and completed #{completed}]", kept="pg"),
    Known("T6", "Stack trace of the failed collective not found", r"Stack trace of the failed collective not found", "info",
          "torch found no stack of the collective that failed: the flight recorder may be off, which TORCH_FR_BUFFER_SIZE=2000 changes"),
    Known("T7", "Some NCCL operations have failed", r"Some NCCL operations have failed or timed out", "cascade", "NCCL's work has failed, and the process ends"),
    Known("T7", "taking the entire process down", r"taking the entire process down", "cascade", "the watchdog ends the process"),
    Known("T7", "watchdog thread terminated", r"watchdog thread terminated with exception", "cascade", "the watchdog ends the process"),
    Known("T7", "terminate called after throwing", r"terminate called after throwing an instance of '(?:c10::DistBackendError|c10::DistNetworkError)'", "cascade", "the watchdog ends the process"),
    Known("T7", "terminate called after throwing", r"terminate called after throwing an instance of '(?P<type>[^']{1,100})'", "root", "ended by a C++ exception: {type}", "rank-crashed"),
    # torch: the store
    Known("T8", "exception_dump", r"check for dump key .exception_dump. failed", "cascade", "the store was gone: the rank or launcher that hosts it has ended"),
    Known("T8", '"should dump" flag', r"Failed to check the .should dump. flag", "cascade", "the store was gone: the rank or launcher that hosts it has ended"),
    Known("T9", "Ping failed, invalid value", r"(?:to host (?P<host>[^\s:]+):(?P<port>\d+).{0,300}?)?Ping failed, invalid value returned from server\. Expected: (?P<expected>\S+), Got: (?P<got>-?\d+)", "root",
          "another program answers on {host}:{port}, where the store should be", "store-port-taken"),
    Known("T9", "failed to connect/validate to host", r"failed to connect/validate to host (?P<host>[^\s:]+):(?P<port>\d+)", "timeout",
          "cannot reach the store at {host}:{port}", "store-unreachable", kept="host"),
    Known("T9", "client socket", r"client socket has (?:timed out after \S+|failed to connect to any network address).*?\((?P<host>[^,()\s]+), (?P<port>\d+)\)", "timeout",
          "cannot reach the store at {host}:{port}", "store-unreachable"),
    Known("T9", "waiting for clients", r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<world>\d+) clients joined", "timeout",
          "only {joined} of {world} ranks have come to the store", "rank-never-joined"),
    Known("T9", "wait timeout after", r"wait timeout after (?P<ms>\d+) ?ms, keys: (?P<keys>\S{1,200})", "timeout",
          "waited {ms} ms for the store's key {keys}, which no rank has set"),
    Known("PORT", "ddress already in use", r"(?:port:? ?\(?(?P<port>\d{2,5})\b.{0,300}?)?[Aa]ddress already in use", "root",
          "the port {port} was taken already", "store-port-taken"),
    Known("PORT", "EADDRINUSE", r"(?:port: (?P<port>\d+).{0,300}?)?EADDRINUSE", "root", "the port {port} was taken already", "store-port-taken"),
    Known("T10", "failed on SocketImpl", r"(?:recv|send)\w+ failed on SocketImpl\(", "cascade", "the store was gone: the rank or launcher that hosts it has ended"),
    Known("T10", "got 0 bytes", r"Failed to recv, got 0 bytes", "cascade", "the store was gone: the rank or launcher that hosts it has ended"),
    Known("T11", "NO watchdog thread", r"NO watchdog thread is created", "info", "TORCH_NCCL_BLOCKING_WAIT is set: there is no watchdog, and no recorder dump"),
    Known("T12", "Guessing device ID", r"Guessing device ID based on global rank", "info", "the GPU was guessed from the rank: with another mapping a barrier hangs; pass device_id="),
    Known("T13", "Detected mismatch between collectives", r"Detected mismatch between collectives on ranks[.: ]*(?P<text>.{0,300})", "root",
          "ranks are in different collectives[: {text}]", "mismatched-collective"),
    Known("T14", "failed to pass monitoredBarrier", r"Ranks? (?P<ranks>[\d, ]+?) failed to pass monitoredBarrier", "timeout",
          "rank {ranks} did not come to the barrier", "missing-collective"),
    Known("T14", "successfully reached monitoredBarrier", r"successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank (?P<from>\d+)", "cascade",
          "was at the barrier, which rank {from} has broken off: that one says who did not come"),
    Known("T15", "DataLoader worker", r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) (?:is killed by signal: (?P<signal>[^.]{1,40})|exited unexpectedly)", "root",
          "DataLoader worker {pid} has died[: {signal}]", "dataloader-worker-dead"),
    Known("T15", "Pin memory thread exited", r"Pin memory thread exited unexpectedly", "root", "the pin-memory thread has died", "pin-memory-stuck"),
    # gloo
    Known("G1", "onnection closed by peer", rf"Connection closed by peer {_AT}", "cascade", "its connection to {peer} was closed: that rank has ended"),
    Known("G1", "onnection reset by peer", rf"(?:Read error {_AT}: )?Connection reset by peer", "cascade", "its connection was reset: the rank at the other end has ended"),
    Known("G1", "roken pipe", r"Broken pipe", "cascade", "whoever it wrote to had ended"),
    Known("G1", "Application timeout caused pair closure", r"Application timeout caused pair closure", "cascade", "gloo gave up after a timeout"),
    Known("G2", "Timed out waiting", r"Timed out waiting (?P<ms>\d+)ms for (?P<what>\w+) operation", "timeout", "waited {ms} ms to {what}, and gave up", "missing-collective"),
    Known("G3", "connectFullMesh failed", r"connectFullMesh failed", "timeout", "gloo could not connect all ranks", "port-blocked"),
    Known("G4", "eceived data size", r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d{1,19}) vs (?P<wanted>\d{1,19})", "root",
          "gloo got {got} bytes where {wanted} were expected: ranks disagree on the size or the type of what they exchange", "mismatched-size"),
    # NCCL: ranks that exchange different sizes. transport/net_socket.cc of 2.12 to 2.30 (before
    # without the words after the sizes); transport/net_ib.cc up to 2.19, since then InfiniBand
    # truncates silently; bootstrap.cc, the rendezvous, of other versions
    Known("N11", "essage truncated : rec", rf"NET/\w+ : (?:peer {_AT} )?message truncated : receiving (?P<got>\d{{1,19}}) bytes instead of (?P<wanted>\d{{1,19}})", "root",
          "NCCL got {got} bytes[ from {peer}] where it expected {wanted}: ranks have issued different operations or sizes, or differ in NCCL_PROTO, NCCL_ALGO and the like", "mismatched-size"),
    Known("N11", "collective mismatch error", rf"NET/IB : (?:.{{0,80}}?peer {_AT} )?collective mismatch error,? local size (?P<got>\d{{1,19}}) remote(?: size)? (?P<wanted>\d{{1,19}})", "root",
          "NCCL has {got} bytes to send[ to {peer}] where {wanted} are expected: ranks have issued different operations or sizes, or differ in NCCL_PROTO, NCCL_ALGO and the like", "mismatched-size"),
    Known("N11", "essage truncated : rec", r"Message truncated : received (?P<got>\d[\d,]{0,40}) bytes instead of (?P<wanted>\d[\d,]{0,40})", "root",
          "NCCL got {got} bytes as ranks met where it expected {wanted}, as where they run different versions of it", "version-mismatch"),
    # NCCL's results, as exceptions carry them
    Known("N10", "remote process exited or there was a network error", r"remote process exited or there was a network error", "cascade", "NCCL lost a rank, or the network"),
    Known("N10", "ncclRemoteError", r"ncclRemoteError", "cascade", "NCCL lost a rank, or the network"),
    Known("N10", "unhandled system error", r"unhandled system error", "root", "a system call failed in NCCL; with NCCL_DEBUG=INFO it says which"),
    Known("N10", "unhandled cuda error", r"unhandled cuda error", "root", "a call of CUDA failed in NCCL; with NCCL_DEBUG=INFO it says which"),
    Known("N10", "internal error - please report", r"internal error - please report this issue to the NCCL", "root", "NCCL failed by an error of its own; with NCCL_DEBUG=INFO it says where"),
    Known("N10", "ncclInvalidUsage", r"ncclInvalidUsage", "root", "NCCL says that it is used in a wrong way; with NCCL_DEBUG=WARN it says how"),
    # torchrun
    Known("T16", "failed (exitcode:", r"failed \(exitcode: (?P<exit>-(?!15\b)\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)", "root",
          "ended by {signal}, says torchrun", "rank-crashed"),
    Known("T16", "failed (exitcode:", r"failed \(exitcode: (?P<exit>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)", "exit",
          "left with exit status {exit}, says torchrun", "rank-exited"),
    Known("T16", "closing signal", r"Sending process (?P<pid>\d+) closing signal (?P<signal>\w+)", "cascade", "torchrun ends the other ranks"),
    Known("T16", "death signal", r"Received (?P<signal>\S+) death signal", "root", "torchrun itself was told to end ({signal}): cancelled, preempted, or out of time", "rank-exited"),
    Known("T16", "RendezvousTimeoutError", r"RendezvousTimeoutError", "timeout", "torchrun waited in vain for the other nodes", "rendezvous-incomplete"),
    Known("T16", "keep-alive heartbeat", r"The node '(?P<node>[^']+)' has failed to send a keep-alive heartbeat", "root", "torchrun on {node} is no longer heard of", "node-unreachable"),
    Known("T16", "ChildFailedError", r"ChildFailedError", "cascade", "torchrun reports what ended its ranks"),
    Known("T16", "got signal: 15", r"got signal: 15", "cascade", "was told to end (SIGTERM)"),
    Known("T16", "got signal:", r"got signal: (?P<signal>\d+)", "root", "was told to end by signal {signal}"),
    # torch.multiprocessing.spawn
    Known("SPAWN", "ProcessRaisedException", r"ProcessRaisedException", "cascade", "torch.multiprocessing reports what ended one of its processes"),
    Known("SPAWN", "terminated with signal", r"[Pp]rocess (?P<rank>\d{1,7}) terminated with signal SIGTERM", "cascade", "torch.multiprocessing has ended the other processes"),
    Known("SPAWN", "terminated with signal", r"[Pp]rocess (?P<rank>\d{1,7}) terminated with signal (?P<signal>\w+)", "root", "ended by {signal}, says torch.multiprocessing", "rank-crashed"),
    Known("SPAWN", "terminated with exit code", r"[Pp]rocess (?P<rank>\d{1,7}) terminated with exit code (?P<exit>\d+)", "exit", "left with exit status {exit}, says torch.multiprocessing", "rank-exited"),
    # Memory, disk, GPU
    Known("OOM", "CUDA out of memory", r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)", "root", "its GPU is out of memory: {size} more were wanted", "rank-exited"),
    Known("OOM", "CUDA out of memory", r"CUDA out of memory", "root", "its GPU is out of memory", "rank-exited"),
    Known("OOM", "DefaultCPUAllocator", r"DefaultCPUAllocator: (?:can't|not enough).*?allocate (?P<size>\d+) bytes", "root", "the node had no memory for {size} bytes more", "rank-exited"),
    Known("DISK", "No space left on device", r"No space left on device(?:.{0,4}: '(?P<path>[^']{1,200})')?", "root", "the disk is full: {path}", "disk-full"),
    Known("DISK", "Disk quota exceeded", r"Disk quota exceeded", "root", "the disk quota is used up", "disk-full"),
    Known("DISK", "unexpected pos", r"inline_container\.cc.{0,10}\] \.? ?unexpected pos \d+ vs \d+", "root", "torch could not write all of a checkpoint: no space, no quota, or a disk error", "disk-full"),
    Known("DISK", "PytorchStreamWriter failed", r"PytorchStreamWriter failed (?:writing|closing)", "root", "torch could not write all of a checkpoint: no space, no quota, or a disk error", "disk-full"),
    Known("ECC", "uncorrectable ECC", r"uncorrectable ECC error", "root", "its GPU has an uncorrectable memory error", "gpu-ecc"),
    Known("NVL", "uncorrectable NVLink", r"uncorrectable NVLink error", "root", "its GPU has an uncorrectable NVLink error", "gpu-nvlink"),
    Known("CUDA", "CUDA error:", r"CUDA error: (?P<error>[^\n]{1,120})", "root", "CUDA error: {error}", "rank-exited"),
    # Signals, as Python, the shell and launchers print them
    Known("SEGV", "Fatal Python error:", r"Fatal Python error: (?P<error>[^\n]{1,80})", "root", "crashed: {error}", "rank-crashed"),
    Known("MPI", "exited on signal", r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<node>\S+) exited on signal (?P<exit>\d+) \((?P<error>[^)]{1,40})\)", "root",
          "ended by {error}, says mpirun", "rank-crashed"),
    Known("MPI", "returned a non-zero exit code", r"returned a\s*non-zero exit code", "cascade", "mpirun ends the job because a rank has failed"),
    Known("SLURM", "srun: error:", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)(?P<more>[\d,-]*): (?P<error>(?:Out Of Memory|Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception)[^\n]{0,40})", "root",
          "ended: {error}, says srun", "rank-crashed"),
    Known("SLURM", "srun: error:", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)(?P<more>[\d,-]*): Exited with exit code (?P<exit>\d+)", "exit",
          "left with exit status {exit}, says srun", "rank-exited"),
    Known("SLURM", "srun: error:", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)(?P<more>[\d,-]*): Terminated", "cascade", "srun ends the other ranks"),
    Known("SEGV", "(core dumped)", r"(?P<error>\w[\w ]{3,40}) \(core dumped\)", "root", "crashed: {error}", "rank-crashed"),
    Known("SLURM", "oom", r"(?i)oom[-_ ]kill(?:ed)? event", "root", "Slurm saw the kernel kill a process for want of memory", "rank-oom-killed"),
    Known("SLURM", "CANCELLED AT", r"\*\*\* (?:JOB|STEP) (?P<job>\S+) ON (?P<node>\S+) CANCELLED AT (?P<when>\S+)(?: (?P<why>DUE TO [A-Z ]+))?", "root", "Slurm ended the job: {why}", "rank-exited"),
    # The kernel
    Known("K1", "NVRM: Xid", _XID % "43|45", "cascade", "GPU {gpu} reports Xid {xid}, which follows from another error", None),
    Known("K1", "NVRM: Xid", _XID % r"\d{1,4}", "root", "GPU {gpu} reports Xid {xid}", "gpu-xid"),
    Known("K2", "Killed process", r"[Oo]ut of memory.*Killed process (?P<pid>\d{1,10}) \((?P<comm>[^)]{0,16})\)", "root", "the kernel killed process {pid} ({comm}) for want of memory", "rank-oom-killed"),
    Known("K2", "oom-kill:", r"oom-kill:constraint=.{0,1500}?task=(?P<comm>[^,]{0,16}),pid=(?P<pid>\d{1,10})", "root", "the kernel killed process {pid} ({comm}) for want of memory", "rank-oom-killed"),
    Known("K3", "blocked for more than", r"task (?P<comm>.{1,32}):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d+) seconds", "root", "process {pid} ({comm}) has waited for a disk or a file server for over {seconds} s", "io-wait"),
    Known("K4", "not responding", r"nfs: server (?P<server>\S+) not responding", "root", "the file server {server} does not answer", "io-wait"),
    Known("K4", "LustreError", r"LustreError: .*timed? ?out", "root", "a Lustre server does not answer", "io-wait"),
    Known("K4", "Port module event", r"mlx5_core \S+.*Port module event", "info", "a cable or module of a network card has changed"),
    Known("K5", "segfault at", _FAULT, "root", "process {pid} ({comm}) crashed: segmentation fault", "rank-crashed"),
    Known("K5", "general protection", _FAULT, "root", "process {pid} ({comm}) crashed: general protection fault", "rank-crashed"),
    Known("K5", "] trap ", _FAULT, "root", "process {pid} ({comm}) crashed: an invalid instruction, or a trap", "rank-crashed"),
    Known("K5", "]: unhandled ", _FAULT, "root", "process {pid} ({comm}) crashed", "rank-crashed"),
    Known("K5", "]: bad frame", _FAULT, "root", "process {pid} ({comm}) crashed", "rank-crashed"),
    # Errors at the start of Python
    Known("START", "can't open file", r"can't open file '(?P<path>[^']{1,300})': \[Errno \d+\] (?P<error>[\w ]{1,60})", "root", "its program could not be read: {path}: {error}", "rank-exited"),
    Known("START", ": No module named", r"python[\d.]*: No module named (?P<name>[\w.]{1,100})", "root", "its Python has no module {name}", "rank-exited"),
    # Other lines with a level of error
    Known("E", "ERROR", r"(?:^|[\s\[|:-])ERROR[\s\]|:]", "error", "an error was logged"),
    Known("E", "CRITICAL", r"(?:^|[\s\[|:-])CRITICAL[\s\]|:]", "error", "a critical error was logged"),
    Known("E", "[E", r"^\[E\d{0,4} ?", "error", "torch logged an error"),
)  # fmt: skip

LAUNCHERS = frozenset({"T16", "MPI", "SLURM", "SPAWN"})
"""Codes of lines that launchers print."""
TRACEBACK = "Traceback (most recent call last)"
FRAME = '  File "'
"""The beginning of a frame: an excerpt of a log may begin with it."""
SUMMARY = ("Root Cause (first observed failure):", "Failures:")
RAISED = " raised the following async exception: "
"""Part of the first line of the watchdog's report on an NCCL error."""
NEEDLES: tuple[str, ...] = tuple(
    dict.fromkeys([TRACEBACK, FRAME, *SUMMARY, RAISED, *(one.needle for one in KNOWN)])
)
_BY_NEEDLE: dict[str, list[Known]] = {}
for _row in KNOWN:
    _BY_NEEDLE.setdefault(_row.needle, []).append(_row)

MATCHED = 2000
"""Maximum number of characters of a line that are matched: lines may be megabytes, and some
patterns take more than linear time, those that search for one thing behind another."""


def recognise(line: str) -> tuple[Known, dict[str, str]] | None:
    """Return the row that a line belongs to, and its fields, or None.

    Args:
        line: without prefixes of launchers; may be the message of an exception, several lines long.
    """
    head = line[:MATCHED]
    informative = None
    for needle, rows in _BY_NEEDLE.items():
        if needle not in head:
            continue
        for row in rows:
            match = row.match.search(head)
            if match is not None:
                pair = row, {k: v for k, v in match.groupdict().items() if v is not None}
                if row.part not in ("info", "error"):
                    return pair
                # The message of an exception names the version of NCCL, too.
                informative = informative or pair
                break
    return informative
