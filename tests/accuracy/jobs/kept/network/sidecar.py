"""A proxy as a service mesh puts beside a program: PORT takes what iptables redirects to it.

SIGUSR1: it goes on reading on every connection, and passes nothing on (as one did after a reload
of its configuration had taken away the routes of connections that were open).
"""

import asyncio
import os
import signal
import socket
import struct
import sys

SO_ORIGINAL_DST = 80
MARK = 0x539
dropping = False


def original(sock):
    """Where the connection was meant to go."""
    _, port, address = struct.unpack("!HH4s8x", sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    return socket.inet_ntoa(address), port


async def pump(reader, writer):
    while data := await reader.read(65536):
        if dropping:
            continue
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(reader, writer):
    onward = socket.socket()
    onward.setblocking(False)
    onward.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    try:
        target = original(writer.get_extra_info("socket"))
        await asyncio.get_running_loop().sock_connect(onward, target)
    except OSError:
        writer.close()
        return
    to_reader, to_writer = await asyncio.open_connection(sock=onward)
    pumps = (pump(reader, to_writer), pump(to_reader, writer))
    await asyncio.gather(*pumps, return_exceptions=True)


def drop():
    global dropping
    dropping = True


async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", int(sys.argv[1]))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, drop)
    with open(sys.argv[2], "w") as note:
        note.write(str(os.getpid()))
    async with server:
        await server.serve_forever()


asyncio.run(main())
