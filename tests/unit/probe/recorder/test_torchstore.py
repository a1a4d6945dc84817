"""A job's store that is asked by somebody who is no rank."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from hangtop_probe.recorder import torchstore


def test_a_store_that_answers_byte_by_byte_holds_nobody_up() -> None:
    over = threading.Event()

    def trickle(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"\0" + struct.pack("=Q", torchstore.MAX_VALUE))
            while not over.wait(0.1):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=trickle, args=(listener,), daemon=True).start()
        began = time.monotonic()
        threading.Timer(20.0, over.set).start()
        with pytest.raises(OSError, match="timed out"):
            torchstore.read("key", "127.0.0.1", listener.getsockname()[1], 1.0)
        assert time.monotonic() - began < 15
        over.set()
