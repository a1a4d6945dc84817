"""The directory into which Slurm's sbcast writes one file on all nodes: see `relay`.

It is there for a moment; what a killed step leaves behind `cache` removes. This file is sent with
the relay, see `relay.PARTS`: nothing else of the probe is there yet.
"""

import os

ROOM = "/tmp/hangtop-"  # noqa: S108  # one path for all nodes; the name cannot be guessed
FILE = "bulk"


def remove_room(path: str) -> bool:
    """Remove a room of ours and the file in it, nothing else; say whether it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_uid == os.geteuid() and FILE in os.listdir(fd):
                os.unlink(FILE, dir_fd=fd)
        finally:
            os.close(fd)
        os.rmdir(path)
    except OSError:
        pass
    return not os.path.lexists(path)
