"""The unix socket of amqpctl: made at the start, before the ready line, so that whoever reads that may use it.

It imports nothing heavy: connections wait in its backlog until the HTTP server behind it is imported.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

NAME: Final = "amqpctl.sock"
BACKLOG: Final = 128


def unix_socket(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0600; what a crashed broker left there goes. Raises: OSError.

    The directory is ours alone (0700, and held by the lock), so nobody comes between the steps. It is named by its
    descriptor, since a socket's path has at most 107 bytes.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            left = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            left = None
        if left is not None:
            if not stat.S_ISSOCK(left.st_mode):
                raise OSError(errno.EEXIST, "something that is no socket is in the way")
            os.unlink(path.name, dir_fd=directory)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # An umask of our own: embedded in another program, the process's may be anything.
            near = f"/proc/self/fd/{directory}/{path.name}"
            before = os.umask(0o177)
            try:
                sock.bind(near)
            finally:
                os.umask(before)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock
    finally:
        os.close(directory)
