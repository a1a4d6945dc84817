"""A process that has a TCPStore on HOST PORT and none of the ranks: another job, or a coordinator."""

import sys
import threading
from datetime import timedelta

import torch.distributed as dist


def main():
    host, port = sys.argv[1], int(sys.argv[2])
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timedelta(hours=1)
    )
    store.set("owner", "coordinator")
    print("serving", flush=True)
    threading.Event().wait(900)


if __name__ == "__main__":
    main()
