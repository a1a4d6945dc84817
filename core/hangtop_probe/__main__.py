"""Entry of the probe: started by a connection with its stdin and stdout.

Started as `python -m hangtop_probe`, or, where that is not importable, with the directory of
the package put on sys.path first.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Dict, Optional, Sequence


def main(arguments: Sequence[str], push: Optional[Dict[str, Any]] = None) -> int:
    """Run the probe until its connection is over; return the exit status.

    There are no ``arguments``. ``push`` holds all it is asked where nothing can be sent to it, see
    `server.Push`.
    """
    from .probe import Probe, internal_error
    from .wire import server, wire

    if arguments:
        sys.stderr.write("usage: hangtop_probe, over stdin and stdout\n")
        return 2
    out = server.take_over_output()
    probe = Probe()
    # Set by `relay`, for connections whose lines may not be long.
    short = wire.SHORT_LINE if os.environ.pop("HANGTOP_SHORT_LINES", "") else wire.MAX_LINE
    order = server.Push(**push) if push is not None else None
    max_line, number = (order.max_line, order.number) if order is not None else (short, 0)
    handlers, alarm = probe.handlers(), signal.alarm
    connection = server.Server(handlers, 0, out, server.SILENCE, max_line, number, alarm)
    probe.bear_silence = connection.bear_silence
    server.end_on_signals(connection.stop)
    try:
        if order is None:
            connection.writer.send(probe.hello(), True)
            probe.keeper.start()
            connection.run()
        else:
            if order.hello:
                connection.writer.send(probe.pushed_hello(), True)
                probe.keeper.start()
            connection.push(order)
    except Exception as error:  # told as a message: there is nobody who reads a traceback
        connection.writer.send(internal_error(error), True)
    finally:
        probe.close()
        connection.wait_answered(3.0)
        connection.writer.close(1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
