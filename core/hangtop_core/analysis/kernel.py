"""What sleeping threads wait for in the kernel, by wait channel and system call.

Wait channels are those of Linux 5 to 6.18. Their names differ between versions, so they are
matched by families; a system call decides where the wait channel cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.process import Thread

_WCHAN: tuple[tuple[str, str], ...] = (
    ("futex", "futex"),
    ("hrtimer_nanosleep", "sleep"),
    ("do_nanosleep", "sleep"),
    ("pipe_write", "pipe-write"),
    ("pipe_read", "pipe-read"),
    ("wait_for_partner", "fifo-open"),
    ("fifo_open", "fifo-open"),
    ("locks_lock", "file-lock"),
    ("flock_lock", "file-lock"),
    ("posix_lock", "file-lock"),
    ("fcntl_setlk", "file-lock"),
    ("nfs4_proc_setlk", "file-lock"),
    ("nlmclnt_block", "file-lock"),
    ("do_wait", "child"),
    ("kernel_wait", "child"),
    ("wait_woken", "socket"),
    ("sk_wait", "socket"),
    ("inet_csk", "socket"),
    ("skb_wait", "socket"),
    ("unix_stream", "socket"),
    ("n_tty_read", "tty-read"),
    ("poll_schedule", "poll"),
    ("do_poll", "poll"),
    ("ep_poll", "poll"),
    ("do_epoll", "poll"),
    ("do_select", "poll"),
    ("sigsuspend", "signal"),
    ("do_sigtimedwait", "signal"),
    ("do_coredump", "core-dump"),
    ("mem_cgroup_handle_over_high", "over-memory"),
)

_SYSCALLS: dict[str, str] = {
    "futex": "futex",
    "futex_waitv": "futex",
    "nanosleep": "sleep",
    "clock_nanosleep": "sleep",
    # By which a sleep goes on once somebody has stopped the thread: a tracer, or SIGSTOP.
    "restart_syscall": "sleep",
    "flock": "file-lock",
    "wait4": "child",
    "waitid": "child",
    "vfork": "child",
    "recvfrom": "socket",
    "recvmsg": "socket",
    "sendto": "socket",
    "sendmsg": "socket",
    "connect": "socket",
    "accept": "socket",
    "accept4": "socket",
    "poll": "poll",
    "ppoll": "poll",
    "select": "poll",
    "pselect6": "poll",
    "epoll_wait": "poll",
    "epoll_pwait": "poll",
    "read": "read",
    "readv": "read",
    "pread64": "read",
    "write": "write",
    "writev": "write",
    "pwrite64": "write",
    "open": "open",
    "openat": "open",
    "fsync": "write",
    "fdatasync": "write",
    "ioctl": "ioctl",
    "pause": "signal",
    "rt_sigtimedwait": "signal",
}


_LOCKS = frozenset({"flock", "fcntl"})
"""Calls that sleep for a lock only; on NFS they do so where a socket is waited for, too, or for
another second before the server is asked again (nfs4_retry_setlk: wait_woken on Linux 6.1)."""


def waits_in(thread: Thread | None) -> str | None:
    """Family of what a sleeping thread waits for in the kernel; None where nothing tells."""
    if thread is None:
        return None
    if thread.syscall in _LOCKS:
        return "file-lock"
    if thread.wchan:
        for part, family in _WCHAN:
            if part in thread.wchan:
                return family
    return _SYSCALLS.get(thread.syscall or "")
