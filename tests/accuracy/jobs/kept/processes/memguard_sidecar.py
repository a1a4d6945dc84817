"""Sidecar: memguard_sidecar.py PID FLOOR_MIB; holds a process while memory is short."""

import os
import signal
import sys
import time


class Guard:
    """Holds a process while the free memory is under a floor."""

    def __init__(self, pid, floor_mib):
        self.pid, self.floor, self.held = pid, floor_mib, False

    def free_mib(self):
        with open("/proc/meminfo") as f:
            rows = dict(line.split(":", 1) for line in f)
        return int(rows["MemAvailable"].split()[0]) // 1024

    def look(self):
        short = self.free_mib() < self.floor
        if short and not self.held:
            print(
                f"memguard: {self.free_mib()} MiB free, floor {self.floor}: holding {self.pid}",
                flush=True,
            )
            os.kill(self.pid, signal.SIGSTOP)
        elif self.held and not short:
            os.kill(self.pid, signal.SIGCONT)
        self.held = short


guard = Guard(int(sys.argv[1]), int(sys.argv[2]))
while True:
    guard.look()
    time.sleep(1)
