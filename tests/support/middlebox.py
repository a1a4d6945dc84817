"""Something between nodes that takes what is sent and, from some moment on, passes nothing on.

middlebox.py PORT GATE: connections that iptables redirects to PORT are carried to where they were
for, until the file GATE exists. The kernel goes on acknowledging what comes, as a proxy, a tunnel
or a load balancer that is stuck does.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from pathlib import Path

SO_ORIGINAL_DST = 80
"""linux/netfilter_ipv4.h"""
MARK = 7
"""Of its own connections, which are not redirected to it again."""


def carry(source: socket.socket, target: socket.socket, gate: Path) -> None:
    while data := source.recv(1 << 16):
        while gate.exists():
            time.sleep(0.1)
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def serve(client: socket.socket, gate: Path) -> None:
    asked = client.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack("!2xH4s8x", asked)
    if port == int(sys.argv[1]):
        client.close()  # it came to us, to see whether we listen: it is not to be sent here again
        return
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    other.connect((socket.inet_ntoa(address), port))
    for ends in ((client, other), (other, client)):
        threading.Thread(target=carry, args=(*ends, gate), daemon=True).start()


def main() -> None:
    port, gate = int(sys.argv[1]), Path(sys.argv[2])
    with socket.create_server(("0.0.0.0", port)) as server:  # in a network of its own
        while True:
            client, _ = server.accept()
            threading.Thread(target=serve, args=(client, gate), daemon=True).start()


if __name__ == "__main__":
    main()
