"""Forwards lines; keeps retrying a line that the collector does not take."""

import sys
import time

role = sys.argv[1]
sent = 0


def deliver(line: str) -> bool:
    global sent
    sent += len(line)
    return role != "rank1" or sent < 200_000


for line in sys.stdin:
    if "INFO" in line:
        print(line, end="", flush=True)
    while not deliver(line):
        print(f"shipper {role}: collector is busy, buffer kept", flush=True)
        time.sleep(86400)
