"""Listening sockets for the addresses in the settings, and the unix socket for amqpctl.

An empty host means all interfaces, with one socket per family on the same port: IPv4, and IPv6 only (V6ONLY) if the
kernel has it. This is also so for port 0, which asks for any free port. So `localhost` reaches the broker however
it resolves, IPv4 peers have no IPv6 form, and a kernel without IPv6 works.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Final, NamedTuple

from amqpd import process

HTTP_BACKLOG: Final = 128
"""Connections that wait for the HTTP server of the admin API."""
ANY: Final = "0.0.0.0"
ANY_IPV6: Final = "::"
# The kernel finds a port that is free in one family; another program may use it in the other.
TRIES: Final = 32
# Errors of a kernel without IPv6, or with IPv6 switched off.
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


class Listener(NamedTuple):
    """An address on which a protocol server listens.

    Attributes:
        protocol: `amqp`, `amqps`, `http`, the name of a guest's protocol, or `unix`.
        host: For `unix`, the path of the socket.
        port: For `unix`, 0.
    """

    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        """Return the form of the ready line."""
        return f"{self.protocol} {format_host(self.host)}:{self.port}"


def format_host(host: str) -> str:
    """Return the host as it is written before a colon and a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets, so that port 0 is known before clients are served.

    There is one socket per address of a host with commas, and one per family for an empty host.

    Raises: OSError with host and port in its text; all sockets are closed then.
    """
    if "," in host:
        return _bound_addresses([each.strip() for each in host.split(",")], port)
    if host:
        return [bound_socket(host, port)]
    for _ in range(TRIES):
        first = bound_socket(ANY, port)
        try:
            return [first, bound_socket(ANY_IPV6, first.getsockname()[1], only_ipv6=True)]
        except OSError as error:
            if error.errno in _NO_IPV6:
                return [first]
            first.close()
            if port or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"found no port that is free for IPv4 and IPv6, in {TRIES} tries")


def _bound_addresses(hosts: list[str], port: int) -> list[socket.socket]:
    """Return sockets on one port. Raises OSError if the port is free for the first address but not for another one,
    also for port 0.
    """
    found: list[socket.socket] = []
    try:
        for host in hosts:
            found.append(bound_socket(host, found[0].getsockname()[1] if found else port, ":" in host))
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found


def bound_socket(host: str, port: int, only_ipv6: bool = False) -> socket.socket:
    """Return one listening socket. `::` without `only_ipv6` accepts both families. Raises as `bound_sockets`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it: a client without heartbeats that vanished is noticed after two hours.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        sock.bind((socket.gethostbyname(host) if family == socket.AF_INET else host, port))
        sock.listen(process.backlog())
        sock.setblocking(False)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise OSError(error.errno, f"cannot listen on {format_host(host)}:{port}: {error.strerror}") from error
    return sock


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
            sock.listen(HTTP_BACKLOG)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            error.filename = str(path)
            raise
        return sock
    finally:
        os.close(directory)


UNKNOWN_HOST: Final = "unknown"
"""Address of a peer whose socket has none: the client reset it before it was accepted."""


def address_or_unknown(name: object) -> tuple[str, int]:
    """Return host and port of a transport's `peername` or `sockname`."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return UNKNOWN_HOST, 0


def is_loopback(host: str) -> bool:
    """Return whether the peer's address is a loopback address. The listener's address does not count."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
