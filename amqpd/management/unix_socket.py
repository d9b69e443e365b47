"""The unix socket for amqpctl.

It is opened before the ready line, so that a program that waits for this line can use it. This module imports nothing
heavy: connections wait in the backlog until the HTTP server is imported.
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
    """Open a listening socket at `path` with mode 0600. Replace the socket of a crashed broker. Raises: OSError.

    The directory has mode 0700 and is locked by this process, so no other process interferes. It is addressed by its
    descriptor, because a socket's path has at most 107 bytes.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            existing = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            existing = None
        if existing is not None:
            if not stat.S_ISSOCK(existing.st_mode):
                raise OSError(errno.EEXIST, "a file that is not a socket exists there", str(path))
            os.unlink(path.name, dir_fd=directory)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Set the umask: that of the process is unknown if the broker is embedded.
            short_path = f"/proc/self/fd/{directory}/{path.name}"
            umask = os.umask(0o177)
            try:
                sock.bind(short_path)
            finally:
                os.umask(umask)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock
    finally:
        os.close(directory)
